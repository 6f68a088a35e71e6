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
from tests.support.checkpoints import case
from tests.support.locked_storage import KEY, locked_storage, put_tree

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
