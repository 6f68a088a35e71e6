"""Checkpoints that reshard converted are read without naming their strategy, if their records are consistent."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.conversion.load import plan_load
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import InputError, ReshardError, StrategyError
from reshard.core.layouts.source_layout import FoundCheckpoint
from reshard.core.layouts.survey import survey
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.recovery import StepState, assess_recovery
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.urls import Location
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from tests.support.checkpoints import Case, case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.diagnosed import diagnose
from tests.support.joining import join_parts
from tests.support.records import change_record

PIPELINE = case(7010)
"""8 ranks of two stages to 2 ranks."""
FOUR_TO_THREE = case(7009)
KEY = "0123456789abcdef"


@pytest.fixture
def place(folder: Location) -> Location:
    return folder.child("made")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A local target of reshard: three ranks."""
    convert(FOUR_TO_THREE.request(tmp_path / "made"))
    return tmp_path / "made"


def whole(source: str | Path | Location, target: Path, **options: object) -> Any:
    """Makes one rank of a source; no strategy is named unless it is among the options."""
    return convert(build_request(source=str(source), target=str(target), **options))


def named(conversion: Case, side: str = "dst") -> str:
    return str(conversion.directory / f"{side}_strategy.ckpt")


def origin_of(place: Path | Location) -> str:
    child = place.child(".reshard", "plan.json.gz") if isinstance(place, Location) else place / ".reshard/plan.json.gz"
    return str(child)


@pytest.mark.parametrize("conversion", [PIPELINE, FOUR_TO_THREE], ids=["pipeline", "one stage"])
@pytest.mark.parametrize("remove_redundancy", [False, True])
def test_converting_what_was_converted(
    conversion: Case, remove_redundancy: bool, place: Location, tmp_path: Path
) -> None:
    convert(conversion.request(str(place), remove_redundancy=remove_redundancy))
    report = whole(place, tmp_path / "whole")
    by_name = whole(place, tmp_path / "by_name", source_strategy=named(conversion))
    assert read_tree(tmp_path / "whole") == read_tree(tmp_path / "by_name")
    note = f"the source was converted by reshard: its strategy is its own, of {origin_of(place)}"
    assert note in report.notes
    assert report.source_world_size == by_name.source_world_size == len(conversion.want)
    assert note not in by_name.notes


def test_the_other_commands(made: Path, tmp_path: Path) -> None:
    source = {"source": str(FOUR_TO_THREE.directory / "src"), "source_strategy": named(FOUR_TO_THREE, "src")}
    before = fingerprint_checkpoint(FingerprintRequest.model_validate(source))
    after = fingerprint_checkpoint(FingerprintRequest(source=str(made)))
    assert (after.fingerprint, after.ranks) == (before.fingerprint, 3)
    note = f"the source was converted by reshard: its strategy is its own, of {origin_of(made)}"
    assert note in after.notes
    compared = compare_checkpoints(
        build_comparison(a=source["source"], strategy_a=source["source_strategy"], b=str(made))
    )
    assert (compared.same, note in compared.b.notes) == (True, True)
    _, summary = describe_plan(build_request(source=str(made), target=str(tmp_path / "out")))
    assert note in summary.notes
    planned = plan_load(str(made))
    assert note in planned.notes
    assert {name for name, _ in planned.load(0)} == {each.name for each in after.parameters}
    recovery = assess_recovery(SourceRequest(source=str(made)))
    assert (recovery.state, note in recovery.notes) == (StepState.WHOLE, True)
    diagnosis = diagnose(str(made))
    assert (diagnosis.fits, diagnosis.strategy, ("note", note) in diagnosis.facts) == (True, origin_of(made), True)


def test_what_is_lost_is_recovered_by_the_own_strategy(tmp_path: Path) -> None:
    strategy = read_strategy(named(FOUR_TO_THREE))
    layouts = {
        name: replace(layout, device_matrix=(2, *layout.device_matrix))
        for name, layout in strategy.stages[0].layouts.items()
    }
    twice = str(tmp_path / "twice.ckpt")
    write_strategy(replace(strategy, stages=(replace(strategy.stages[0], layouts=layouts, operators=()),)), twice)
    made = tmp_path / "made"
    convert(FOUR_TO_THREE.request(made, target_strategy=twice))
    (made / "rank_4/checkpoint_4.ckpt").unlink()
    recovery = assess_recovery(SourceRequest(source=str(made)))
    assert recovery.state is StepState.RECOVERABLE
    whole(made, tmp_path / "whole", recover=True)
    convert(FOUR_TO_THREE.request(tmp_path / "directly", target_strategy=""))
    assert read_tree(tmp_path / "whole") == read_tree(tmp_path / "directly")


def test_what_needs_no_strategy_has_no_note(tmp_path: Path) -> None:
    convert(FOUR_TO_THREE.request(tmp_path / "one", target_strategy=""))
    convert(FOUR_TO_THREE.request(tmp_path / "unified", target_strategy="", layout="unified"))
    for name in ("one", "unified"):
        report = whole(tmp_path / name, tmp_path / f"{name}_again")
        assert not [note for note in report.notes if "its own" in note]


def test_parts_and_what_they_are_joined_to(tmp_path: Path) -> None:
    parts = []
    for stage in (0, 1):
        parts.append(str(tmp_path / f"stage{stage}"))
        strategy = str(PIPELINE.directory / f"src_stages/strategy_{4 * stage}.ckpt")
        convert(PIPELINE.request(parts[-1], source_strategy=strategy))
    with pytest.raises(InputError, match="the parts of other stages are missing"):
        whole(parts[0], tmp_path / "whole")
    join_parts(parts, str(tmp_path / "joined"))
    with pytest.raises(InputError, match="several ranks need a source strategy, none is given"):
        whole(tmp_path / "joined", tmp_path / "whole")


# ---- encrypted ----


def test_of_an_encrypted_one_the_key_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", KEY[::-1])
    for mode in ("AES-GCM", "AES-CBC"):
        made = tmp_path / mode
        convert(FOUR_TO_THREE.request(made, encrypt_key="env:RESHARD_KEY", encrypt_mode=mode))
        with pytest.raises(
            InputError, match=f"manifest.json: is encrypted with {mode}: name its key with 'decrypt_key'"
        ):
            whole(made, tmp_path / "nowhere")
        with pytest.raises(StrategyError, match="env:OTHER_KEY is not the key"):
            whole(made, tmp_path / "nowhere", decrypt_key="env:OTHER_KEY", decrypt_mode=mode)
        report = whole(made, tmp_path / f"whole_{mode}", decrypt_key="env:RESHARD_KEY", decrypt_mode=mode)
        assert f"its own, of {origin_of(made)}" in report.notes[0]


def test_a_plain_plan_beside_encrypted_files_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_KEY", KEY)
    made = tmp_path / "made"
    convert(FOUR_TO_THREE.request(made, encrypt_key="env:RESHARD_KEY"))
    convert(FOUR_TO_THREE.request(tmp_path / "plain"))
    shutil.copy(origin_of(tmp_path / "plain"), origin_of(made))
    with pytest.raises(StrategyError, match="is not the plan that was written: it was changed"):
        whole(made, tmp_path / "whole", decrypt_key="env:RESHARD_KEY")


# ---- inconsistent records ----


def replaced(made: Path) -> None:
    path = made / "rank_1/checkpoint_1.ckpt"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes() + checkpoint_bytes(("more", "Int8", (1,), b"x")))


def one_newer(made: Path) -> None:
    for rank in range(3):
        shutil.copy(made / f"rank_{rank}/checkpoint_{rank}.ckpt", made / f"rank_{rank}/checkpoint_{rank}-7_1.ckpt")
        (made / f"rank_{rank}/checkpoint_{rank}.ckpt").unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (replaced, "rank_1/checkpoint_1.ckpt has [0-9]+ bytes, manifest.json says [0-9]+"),
        (one_newer, "is not the file that manifest.json has for the rank, rank_0/checkpoint_0.ckpt"),
    ],
)
def test_files_that_were_replaced(made: Path, tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(made)
    with pytest.raises(StrategyError, match=message) as caught:
        whole(made, tmp_path / "whole")
    assert "was converted by reshard, but changed since" in str(caught.value)
    assert str(caught.value).endswith("Name their strategy with 'source_strategy'")
    diagnosis = diagnose(str(made))
    assert diagnosis.fits is False
    assert [each.advice for each in diagnosis.findings if "manifest.json" in each.found] == [
        "give their strategy with 'source_strategy'"
    ]
    assert whole(made, tmp_path / "whole", source_strategy=named(FOUR_TO_THREE)).committed


def test_a_part_of_the_ranks_that_was_copied(made: Path, tmp_path: Path) -> None:
    """A single copied rank would pass for one rank that holds everything."""
    for rank in (1, 2):
        shutil.rmtree(made / f"rank_{rank}")
    with pytest.raises(ReshardError, match="has 1 rank, but the source strategy has 3 ranks; missing|missing: rank_1"):
        whole(made, tmp_path / "whole")


def garbage(made: Path) -> None:
    Path(origin_of(made)).write_bytes(b"x")


def of_another_plan(made: Path) -> None:
    other = made.parent / "other"
    convert(FOUR_TO_THREE.request(other, prefix="other_"))
    shutil.copy(origin_of(other), origin_of(made))


def of_another_plan_and_its_digest(made: Path) -> None:
    of_another_plan(made)
    change_record(made / ".reshard/manifest.json", plan_digest=digest_of(Path(origin_of(made))))


def digest_of(file: Path) -> str:
    return xxhash.xxh3_128_hexdigest(file.read_bytes())


def damaged_manifest(made: Path) -> None:
    (made / ".reshard/manifest.json").write_text("{}")


def forged(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A plan whose target strategy is changed, and a manifest that was written for it."""

    def harm(made: Path) -> None:
        document = json.loads(gzip.decompress(Path(origin_of(made)).read_bytes()))
        change(document["target_strategy"])
        Path(origin_of(made)).write_bytes(gzip.compress(json.dumps(document).encode()))
        del document["catalog"]["notes"], document["catalog"]["assumed"]
        identity = xxhash.xxh3_128_hexdigest(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
        change_record(made / ".reshard/manifest.json", identity=identity, plan_digest=digest_of(Path(origin_of(made))))

    return harm


def layout_of(strategy: dict[str, Any], place: int, value: object) -> None:
    strategy["layouts"][0][place] = value


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (garbage, "is not the plan that was written: it was changed"),
        (of_another_plan, "is not the plan that was written: it was changed"),
        (of_another_plan_and_its_digest, "it is not the plan that the manifest beside it was written for"),
        (damaged_manifest, "not a readable manifest"),
        (forged(lambda strategy: layout_of(strategy, 0, [3.0])), "stage 0 cannot have 3.0 devices"),
        (forged(lambda strategy: layout_of(strategy, 0, [3, 1.0])), "cannot have 3.0 devices"),
        (forged(lambda strategy: layout_of(strategy, 0, ["3"])), "not a readable plan"),
        (forged(lambda strategy: layout_of(strategy, 0, [-3])), "not a readable plan"),
        (forged(lambda strategy: layout_of(strategy, 1, [[99]])), "not a readable plan"),
        (forged(lambda strategy: layout_of(strategy, 5, "x")), "has values that are not integers"),
        (forged(lambda strategy: strategy.update(layouts=[])), "not a readable plan"),
        (forged(lambda strategy: strategy.update(stages=[])), "not a readable plan"),
        (forged(lambda strategy: strategy.update(stages=7)), "not a readable plan"),
        (
            forged(lambda strategy: strategy.update(stages=[{"stage": 0, "parameters": {}, "devices": 10**30}])),
            "cannot have 1000000000000000000000000000000 devices",
        ),
        (
            forged(lambda strategy: strategy.update(stages=[{"stage": 0, "parameters": {}, "devices": 2}])),
            "its strategy has 2 ranks, manifest.json has 3",
        ),
    ],
)
def test_records_that_cannot_be_used(made: Path, tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(made)
    with pytest.raises(StrategyError, match=message) as caught:
        whole(made, tmp_path / "whole")
    assert str(caught.value).startswith(f"{made}: its records hold its strategy, but cannot be used: ")
    assert "Name the strategy with 'source_strategy', or, if it needs none, move .reshard away" in str(caught.value)
    report = whole(made, tmp_path / "whole", source_strategy=named(FOUR_TO_THREE))
    assert report.committed
    assert [note for note in report.notes if note.startswith("the source's own records were not checked: ")]


# ---- another strategy is named ----


def test_a_named_strategy_that_contradicts_the_own_one(made: Path, tmp_path: Path) -> None:
    strategy = read_strategy(named(FOUR_TO_THREE))
    [stage] = strategy.stages
    name, layout = next((name, each) for name, each in stage.layouts.items() if len(each.tensor_map) == 2)
    turned = replace(layout, tensor_map=layout.tensor_map[::-1], optimizer_shard_size=0, optimizer_shard_step=0)
    wrong = str(tmp_path / "wrong.ckpt")
    write_strategy(replace(strategy, stages=(replace(stage, layouts={**stage.layouts, name: turned}),)), wrong)
    with pytest.raises(StrategyError) as caught:
        whole(made, tmp_path / "whole", source_strategy=wrong)
    assert str(caught.value) == (
        f"{wrong}: cuts {name} differently from the strategy that {made} was converted by ({origin_of(made)}). Leave "
        "out 'source_strategy', and the source's own is used; or, if its files are of the named one, pass "
        "trust_strategy=True"
    )
    report = whole(made, tmp_path / "whole", source_strategy=wrong, trust_strategy=True)
    assert any(note.startswith(f"{wrong}: cuts {name} differently from") for note in report.notes)


def test_another_spelling_of_the_same_cut_is_no_contradiction(made: Path, tmp_path: Path) -> None:
    strategy = read_strategy(named(FOUR_TO_THREE))
    [stage] = strategy.stages
    layouts = {
        name: replace(layout, device_matrix=(1, *layout.device_matrix)) for name, layout in stage.layouts.items()
    }
    same = str(tmp_path / "same.ckpt")
    write_strategy(replace(strategy, stages=(replace(stage, layouts=layouts),)), same)
    assert whole(made, tmp_path / "whole", source_strategy=same).committed


def test_the_plan_of_a_source_is_read_once(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(location: Location, limit_bytes: int) -> bytes:
        read.append(str(location))
        return read_own_file(location, limit_bytes)

    monkeypatch.setattr("reshard.core.records.plan_file.read_own_file", reading)
    whole(made, tmp_path / "whole")
    assert read.count(origin_of(made)) == 1


@pytest.mark.parametrize("harm", ["replaced", "removed"])
def test_records_that_are_replaced_while_the_source_is_opened(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Files of the same sizes would have been read by the former checkpoint's strategy."""
    manifest = made / ".reshard/manifest.json"

    def found_late(source: str, step: str) -> FoundCheckpoint:
        if harm == "replaced":
            change_record(manifest, created="2001-01-01T00:00:00+00:00")
        else:
            shutil.rmtree(made / ".reshard")
        return survey(source, step)

    monkeypatch.setattr("reshard.core.source.opening.survey", found_late)
    with pytest.raises(StrategyError, match="its records were replaced meanwhile; run the command again"):
        whole(made, tmp_path / "whole")


def test_files_that_were_moved_out_of_their_rank_folders_are_not_read_by_the_records(
    made: Path, tmp_path: Path
) -> None:
    for rank in (0, 1, 2):
        [file] = (made / f"rank_{rank}").iterdir()
        file.rename(made / f"net_rank_{rank}.ckpt")
        file.parent.rmdir()
    with pytest.raises(StrategyError, match=r"was converted by reshard, but changed since \(.* is not the file that"):
        whole(made, tmp_path / "whole")
