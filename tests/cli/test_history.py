"""`reshard history` of directories; `tests/deployments/test_history.py` has that of servers."""

import json
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import reshard as library
from reshard.cli import output
from reshard.cli.history import _STATES
from reshard.core.conversion.convert import convert
from reshard.core.conversion.history import ConversionState
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import case
from tests.support.locked_storage import KEY, locked_storage, put_tree
from tests.support.signed_sources import Keys

FOUR_TO_THREE = case(7009)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished conversions, and one that is not."""
    directory = tmp_path_factory.mktemp("targets")
    convert(FOUR_TO_THREE.request(directory / "whole"))
    convert(FOUR_TO_THREE.request(directory / "compared", verify="content"))
    convert(FOUR_TO_THREE.request(directory / "begun", ranks="0"))
    return directory


def test_the_option_has_the_words_of_all_states() -> None:
    assert sorted(_STATES) == sorted(ConversionState)


def test_a_table_with_a_line_for_each_conversion_and_their_sums(reshard: Callable[..., Any], places: Path) -> None:
    shown = reshard("history", places)
    assert shown.code == 0, shown.err
    fingerprint = json.loads((places / "compared/.reshard/manifest.json").read_text())["fingerprint"]
    head, *rows = shown.out.split("\n\n")[0].splitlines()
    assert head.split() == [
        *("began", "state", "target", "source", "ranks", "written", "took", "verified", "GB·h", "ran", "as", "why"),
        "fingerprint",
    ]
    assert sorted(row.split()[2] for row in rows) == ["committed", "committed", "unfinished"]
    [whole] = [row for row in rows if str(places / "whole") in row]
    assert "4 -> 3" in whole
    assert "checksum" in whole
    [begun] = [row for row in rows if "unfinished" in row]
    assert begun.endswith("1 rank done")
    [compared] = [row for row in rows if str(places / "compared") in row]
    assert compared.split()[-1] == fingerprint
    assert "3 conversions: 2 committed, 1 unfinished; " in shown.out


def test_a_program_and_a_notebook_show_the_table_of_the_command(reshard: Callable[..., Any], places: Path) -> None:
    history = library.history(places)
    assert str(history) == reshard("history", places).out.rstrip()
    html = history._repr_html_()
    assert "<table " in html
    assert str(places / "whole") in html
    assert str(library.history(places, limit=2)).endswith("(earlier ones are not shown; limit=0 shows all)")


def test_quietly_only_the_table_is_printed(reshard: Callable[..., Any], places: Path) -> None:
    assert reshard("history", places, "--quiet").out == reshard("history", places).out.split("\n\n")[0] + "\n"


def test_json_has_entries_and_totals(reshard: Callable[..., Any], places: Path) -> None:
    found = reshard("history", places, "--json").json
    assert len(found["entries"]) == 3
    assert found["totals"]["conversions"] == 3
    assert found["totals"]["states"] == {"committed": 2, "unfinished": 1}
    assert found["is_cut"] is False
    assert {"cost_gb_hours", "fingerprint", "begun", "ran_as", "approval"} <= found["entries"][0].keys()


def test_filters_and_a_limit(reshard: Callable[..., Any], places: Path) -> None:
    def targets(*options: str) -> set[str]:
        found = reshard("history", places, "--json", *options)
        assert found.code == 0, found.err
        return {Path(each["target"]).name for each in found.json["entries"]}

    assert targets("--state", "unfinished") == {"begun"}
    assert targets("--state", "unfinished", "--state", "committed") == {"begun", "whole", "compared"}
    assert targets("--target", "*/w*") == {"whole"}
    assert targets("--since", "1h", "--source", FOUR_TO_THREE.directory.name) == {"whole", "compared"}
    assert targets("--since", "2100-01-01") == set()
    assert len(targets("--limit", "1")) == 1
    assert len(targets("--limit", "0")) == 3
    assert "(earlier ones are not shown; --limit 0 shows all)" in reshard("history", places, "--limit", "2").out


def test_several_places_are_one_history_and_none_is_counted_twice(reshard: Callable[..., Any], places: Path) -> None:
    found = reshard("history", places / "whole", places / "compared", places / "whole", "--json").json
    assert len(found["entries"]) == 2


@pytest.mark.parametrize("width", [62, 100, 200])
def test_a_table_fits_its_terminal(
    reshard: Callable[..., Any], places: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda stream: width)
    lines = reshard("history", places).out.splitlines()
    assert max(map(len, lines)) <= width
    head = lines[0].split()
    assert {"began", "state", "target"} <= set(head)


def test_where_nothing_was_converted_it_says_so(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("history", tmp_path)
    assert (shown.code, shown.out) == (0, "no conversions found\n")
    assert reshard("history", tmp_path, "--json").json["entries"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nowhere/at/all",), "error: /nowhere/at/all: does not exist"),
        (("--since", "yesterday"), "error: --since: 'yesterday' is not a time; give one before now, such as 12h"),
        (("--state", "comitted"), "Did you mean 'committed'?"),
        (("--limit", "-1"), "-1 is not in the range x>=0"),
        (("/tmp", "--server", "http://x/api"), "--server and PLACE cannot be combined: leave one out"),
        (("--storage", "env:X"), "--storage: only valid with a PLACE"),
        ((), "no Prefect server is configured: set PREFECT_API_URL=http://HOST:4200/api, name one with --server, or"),
        (("--server", "nowhere"), "nowhere (--server) is not the URL of a Prefect server"),
    ],
)
def test_wrong_input_is_told(
    reshard: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    shown = reshard("history", *arguments)
    assert shown.code == 2
    assert message in shown.err


def test_a_server_that_does_not_answer_is_a_failure(reshard: Callable[..., Any]) -> None:
    shown = reshard("history", "--server", "http://127.0.0.1:9/api")
    assert shown.code == 3
    assert "the Prefect server at http://127.0.0.1:9/api (--server) does not answer: " in shown.err


def test_a_storage_is_opened_with_its_options(
    reshard: Callable[..., Any], places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", json.dumps({"key": KEY}))
    with locked_storage() as fs:
        put_tree(fs, places, "/targets")
        assert reshard("history", "locked://targets").code == 2
        found = reshard("history", "locked://targets", "--storage", "env:STORAGE", "--json")
    assert found.code == 0, found.err
    assert len([each for each in found.json["entries"] if each["state"] == "committed"]) == 2


def test_control_characters_of_strangers_do_not_reach_the_terminal(
    reshard: Callable[..., Any], places: Path, tmp_path: Path
) -> None:
    shutil.copytree(places / "whole", tmp_path / "\x1b[2Jtarget")
    shown = reshard("history", tmp_path)
    assert shown.code == 0
    assert "\x1b" not in shown.out + reshard("history", tmp_path, "--json").out


def test_the_function_does_the_same(reshard: Callable[..., Any], places: Path) -> None:
    found = library.history(places, states=["committed"], since="1d", limit=1)
    shown = reshard("history", places, "--state", "committed", "--since", "1d", "--limit", "1", "--json").json
    assert json.loads(found.model_dump_json()) == shown
    assert found.is_cut
    assert len(library.history(places / "whole", places / "compared").entries) == 2
    assert not library.history(places, since=datetime(2100, 1, 1)).entries  # noqa: DTZ001  # taken for UTC


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"states": ["comitted"]}, "states: there is no state 'comitted'; did you mean committed?"),
        ({"since": "yesterday"}, "'since': 'yesterday' is not a time"),
        ({"server": "http://x/api"}, "server: cannot be combined with places: leave one out"),
        ({"sinze": "1d"}, "sinze: there is no such option; did you mean since?"),
    ],
)
def test_the_function_names_what_is_wrong(places: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        library.history(places, **arguments)
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a training, converted three times and signed; what came before the last target is gone."""
    directory = tmp_path_factory.mktemp("chain")
    keys = Keys(directory)
    convert(FOUR_TO_THREE.request(directory / "first", sign=keys.private, sha256="source", verify="content"))
    for source, target in (("first", "second"), ("second", "third")):
        where = {"source": directory / source, "target": directory / target}
        convert(build_request(**where, sign=keys.private, cast=["*=bfloat16"] if target == "second" else []))
        shutil.rmtree(directory / source)
    return directory


def test_the_way_from_training_to_a_target_is_shown_below_it(reshard: Callable[..., Any], chain: Path) -> None:
    shown = reshard("history", chain / "third")
    assert shown.code == 0, shown.err
    _, rows = shown.out.split("by the statements beside it:\n\n")
    head, training, first, second, third = rows.split("\n\n")[0].splitlines()
    assert "what" in head.split()
    assert training.split()[:2] == ["training", str(FOUR_TO_THREE.directory / "src")]
    for row, place in ((first, "first"), (second, "second"), (third, "third")):
        assert row.split()[:2] == ["conversion", str(chain / place)]
        assert "intact" in row
        assert "not checked" in row
    assert "equal" in first
    assert "cast" in second
    assert "only resharded" in third
    assert "the chain begins here: its source was not converted by reshard, or without SHA-256" in shown.out
    assert "the chain is intact: each statement is the one that the next one refers to, but signatures were not" in (
        shown.out
    )


def test_the_signatures_of_every_step_are_checked(reshard: Callable[..., Any], chain: Path, tmp_path: Path) -> None:
    right = reshard("history", chain / "third", "--signed-by", chain / "key.pub", "--json")
    assert right.code == 0, right.err
    lineage = json.loads(right.out)["lineage"]
    assert lineage["intact"]
    assert [step["kind"] for step in lineage["steps"]] == ["training", *["conversion"] * 3]
    assert [step["ranks"] for step in lineage["steps"]] == [4, 3, 1, 1]
    assert [step["signed"] for step in lineage["steps"][1:]] == ["valid"] * 3
    assert all(step["signer"].startswith("the key with SHA-256 ") for step in lineage["steps"][1:])
    other = reshard("history", chain / "third", "--signed-by", Keys(tmp_path).public)
    assert other.code == 1
    assert "But NOT ALL ARE SIGNED as asked for:" in other.out
    assert other.out.count("signed by another key: SHA-256 ") == 3
    assert f"  {chain}/third/model.sig: signed by another key" in other.out


def test_a_table_shortens_the_digest_of_a_key(reshard: Callable[..., Any], chain: Path) -> None:
    by = json.loads(reshard("history", chain / "third", "--json").out)["lineage"]["steps"][-1]["signer"]
    digest = by.removeprefix("the key with SHA-256 ")
    shown = reshard("history", chain / "third").out
    assert f"  key {digest[:12]}…  " in shown
    assert digest not in shown


def test_keys_that_cannot_be_read_are_named_with_their_option(reshard: Callable[..., Any], chain: Path) -> None:
    for path in ("nothing.pub", "third"):
        for command in ("history", "attest", "verify"):
            refused = reshard(command, chain / "third", "--signed-by", chain / path)
            assert (refused.code, refused.out) == (2, "")
            assert f"--signed-by {chain / path}: {chain / path}: cannot read it: " in refused.err


def test_a_broken_link_is_named(reshard: Callable[..., Any], chain: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(chain / "third", tmp_path / "third"))
    changed = target / ".reshard/predecessors/2/provenance.intoto.json"
    changed.write_bytes(changed.read_bytes().replace(b"e", b"f", 1))
    shown = reshard("history", target)
    assert shown.code == 1
    assert "the chain is BROKEN:" in shown.out
    assert f"{changed}: is not the statement that was written" in shown.out


def test_a_target_without_statements_has_no_way_to_show(reshard: Callable[..., Any], places: Path) -> None:
    assert "from training" not in reshard("history", places / "whole").out
    refused = reshard("history", places / "whole", "--signed-by", places / "whole/.reshard/manifest.json")
    assert "is not PEM" in refused.err
    assert reshard("history", places, places, "--signed-by", "x").code == 2


def test_signatures_of_a_target_without_statements_cannot_be_checked(
    reshard: Callable[..., Any], places: Path, chain: Path
) -> None:
    refused = reshard("history", places / "whole", "--signed-by", chain / "key.pub")
    assert refused.code == 2
    assert "needs a single finished conversion that has statements, which --sha256 target makes" in refused.err


def test_programs_get_the_way_as_well(chain: Path) -> None:
    lineage = library.history(chain / "third", signed_by=chain / "key.pub").lineage
    assert lineage is not None
    assert [step.values_compared for step in lineage.steps] == [None, True, False, False]
