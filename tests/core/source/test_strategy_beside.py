"""A strategy that lies beside a source is used by itself only where nothing rests on a guess."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.inspection import inspect_parameters
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import CatalogError, InputError
from reshard.core.records.plan_file import plan_identity
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest, OpenRequest, SourceRequest
from reshard.core.source.opening import find_strategy, open_source
from reshard.core.source.recovery import assess_recovery
from reshard.core.storage.named_options import named_storages, options_for
from reshard.core.strategy.model import Strategy
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from reshard.core.verification.scan import scan_checkpoint
from tests.support.checkpoints import case, read_tree
from tests.support.diagnosed import diagnose
from tests.support.small_files import forget_memory

PIPELINE = case(7010)
"""8 ranks of two stages to 2 ranks."""
STAGES = PIPELINE.directory / "src_stages"
EARLIER, SAVED, LATER = 1_000_000_000, 1_000_000_100, 1_000_000_200


def dated(path: Path, seconds: int) -> Path:
    for each in (path, *path.rglob("*")):
        os.utime(each, (seconds, seconds))
    return path


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A directory with a checkpoint of 8 ranks, saved at SAVED, and nothing else."""
    shutil.copytree(PIPELINE.directory / "src", tmp_path / "training/checkpoint")
    dated(tmp_path / "training/checkpoint", SAVED)
    return tmp_path / "training"


def with_strategy(training: Path, place: str = "strategy", source: Path = STAGES, seconds: int = EARLIER) -> Path:
    copy = shutil.copytree if source.is_dir() else shutil.copy
    return dated(Path(copy(source, training / place)), seconds)


def refusal_of(training: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        find_strategy(SourceRequest.model_validate({"source": str(training / "checkpoint"), **options}))
    return str(caught.value)


def refusal_text(training: Path, *reasons: str) -> str:
    lines = "\n  ".join(f"{training}/{reason}" for reason in reasons)
    return (
        f"{training}/checkpoint: 8 ranks: several ranks need a source strategy, none is given, and the one beside the "
        f"checkpoint is not used automatically:\n  {lines}\nGive the strategy of the job that saved it with "
        "'source_strategy'; 'reshard doctor' checks it"
    )


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("strategy", STAGES),
        ("checkpoint/strategy", STAGES),
        ("ckpt_strategy", STAGES),
        ("llama_ckpt_strategy_8", STAGES),
        ("merged_ckpt_strategy.ckpt", PIPELINE.directory / "src_strategy.ckpt"),
        ("checkpoint/ckpt_strategy.ckpt", PIPELINE.directory / "src_strategy.ckpt"),
    ],
)
def test_where_trainings_leave_them(training: Path, place: str, source: Path) -> None:
    with_strategy(training, place, source)
    found = find_strategy(SourceRequest(source=str(training / "checkpoint")))
    assert isinstance(found, Strategy)
    assert found.origin == str(training / place)


def test_it_counts_as_if_it_were_named(training: Path, tmp_path: Path) -> None:
    named = str(with_strategy(training))
    given = {"source": str(training / "checkpoint"), "target": str(tmp_path / "out")}
    automatic, explicit = build_request(**given), build_request(**given, source_strategy=named)
    assert plan_identity(make_plan(automatic)) == plan_identity(make_plan(explicit))
    source = open_source(SourceRequest(source=given["source"]))
    assert (source.request.source_strategy, source.is_trusted) == (named, False)
    report = convert(automatic)
    [note] = [note for note in report.notes if "beside" in note]
    assert note == (
        f"using the strategy beside the checkpoint, {named}: it is the only one there, older than the checkpoint, and "
        "'reshard doctor' finds it consistent; use 'source_strategy' for another, auto_strategy=False for none"
    )
    assert read_tree(tmp_path / "out")[0] == read_tree(PIPELINE.directory / "full")[0]
    assert convert(explicit).written_bytes == 0


def test_the_directory_of_outputs_has_it_too(training: Path) -> None:
    with_strategy(training)
    assert isinstance(find_strategy(SourceRequest(source=str(training))), Strategy)


def test_a_merged_strategy_that_was_written_later_agrees_with_the_ranks_own(training: Path) -> None:
    with_strategy(training)
    merged = Path(
        shutil.copy(PIPELINE.directory / "src_strategy.ckpt", training / "strategy/merged_ckpt_strategy.ckpt")
    )
    dated(merged, LATER)
    found = find_strategy(SourceRequest(source=str(training / "checkpoint")))
    assert isinstance(found, Strategy)
    assert "agrees with the files beside it" in found.notes[1]


def test_a_later_stages_own_counts_even_beside_an_earlier_merged_one(training: Path) -> None:
    with_strategy(training, seconds=LATER)
    merged = shutil.copy(PIPELINE.directory / "src_strategy.ckpt", training / "strategy/merged_ckpt_strategy.ckpt")
    dated(Path(merged), EARLIER)
    assert "is consistent, but newer than the checkpoint" in refusal_of(training)


# ---- what is refused ----


def test_one_that_is_newer_may_be_another_jobs(training: Path) -> None:
    with_strategy(training, seconds=LATER)
    assert refusal_of(training) == refusal_text(
        training,
        "strategy: is consistent, but newer than the checkpoint: it was copied later, or written by a later job",
    )


def test_one_that_is_newer_than_the_chosen_step(training: Path) -> None:
    with_strategy(training, seconds=LATER)
    for rank in range(8):
        [file] = [*(training / f"checkpoint/rank_{rank}").iterdir()]
        shutil.copy(file, file.with_name("net-1_1.ckpt"))
        file.rename(file.with_name("net-1_2.ckpt"))
        dated(file.with_name("net-1_2.ckpt"), LATER + 1)
        dated(file.with_name("net-1_1.ckpt"), SAVED)
    assert isinstance(find_strategy(SourceRequest(source=str(training / "checkpoint"))), Strategy)
    assert "is consistent, but newer than the checkpoint" in refusal_of(training, step="1_1")


@pytest.mark.parametrize("folders", [True, False])
def test_one_beside_another_checkpoint_may_be_its(training: Path, folders: bool) -> None:
    with_strategy(training)
    for rank in (0, 1):
        file = training / "other" / (f"rank_{rank}/net-1_1.ckpt" if folders else f"net_rank_{rank}-1_1.ckpt")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    assert refusal_of(training) == refusal_text(
        training,
        f"strategy: is consistent, but other checkpoints lie beside it, too, and it may be theirs: {training}/other",
    )


def test_what_is_no_other_jobs_checkpoint(training: Path, tmp_path: Path) -> None:
    with_strategy(training)
    shutil.copytree(training / "checkpoint", training / "checkpoint_network")
    shutil.copytree(STAGES, training / "target")
    shutil.copytree(PIPELINE.directory / "full", training / "whole")
    convert(
        build_request(
            source=str(training / "checkpoint"),
            source_strategy=str(training / "strategy"),
            target=str(training / "made"),
            target_strategy=str(PIPELINE.directory / "dst_strategy.ckpt"),
        )
    )
    assert isinstance(find_strategy(SourceRequest(source=str(training / "checkpoint"))), Strategy)


def test_one_in_the_checkpoint_itself_is_its_own(training: Path) -> None:
    with_strategy(training, "checkpoint/strategy")
    shutil.copytree(training / "checkpoint", training / "other")
    assert isinstance(find_strategy(SourceRequest(source=str(training / "checkpoint"))), Strategy)


def test_too_many_neighbors(training: Path) -> None:
    with_strategy(training)
    for number in range(65):
        (training / f"run_{number}").mkdir()
    assert f"{training}: has 65 other directories, too many to look for checkpoints" in refusal_of(training)


def test_several(training: Path) -> None:
    with_strategy(training)
    with_strategy(training, "merged_ckpt_strategy.ckpt", PIPELINE.directory / "src_strategy.ckpt")
    assert refusal_of(training) == refusal_text(
        training, "merged_ckpt_strategy.ckpt: is one of several", "strategy: is one of several"
    )


def test_one_of_other_ranks(training: Path) -> None:
    with_strategy(training, "ckpt_strategy.ckpt", PIPELINE.directory / "dst_strategy.ckpt")
    assert refusal_of(training) == refusal_text(training, "ckpt_strategy.ckpt: is of ranks 0-1, the checkpoint of 0-7")


def test_one_stages_own(training: Path) -> None:
    with_strategy(training, "ckpt_strategy.ckpt", STAGES / "strategy_4.ckpt")
    assert refusal_of(training) == refusal_text(training, "ckpt_strategy.ckpt: is of ranks 4-7, the checkpoint of 0-7")


def test_one_that_contradicts_the_checkpoint(training: Path) -> None:
    with_strategy(training)
    for rank in (4, 5, 6, 7):
        shutil.rmtree(training / f"checkpoint/rank_{rank}")
        shutil.copytree(training / "checkpoint/rank_0", training / f"checkpoint/rank_{rank}")
    refusal = refusal_of(training)
    assert refusal.startswith(refusal_text(training, "strategy: contradicts the checkpoint: ").partition("\nGive")[0])
    assert "in the strategy, and in no file" in refusal


def test_one_that_cannot_be_read(training: Path) -> None:
    (training / "ckpt_strategy.ckpt").write_bytes(b"nothing")
    refusal = refusal_of(training)
    assert f"{training}/ckpt_strategy.ckpt: cannot be checked: {training}/ckpt_strategy.ckpt: " in refusal


def test_one_that_is_too_large_is_not_read(training: Path) -> None:
    with (training / "ckpt_strategy.ckpt").open("wb") as file:
        file.truncate(200 << 20)
    assert "a strategy has less than 134217728" in refusal_of(training)


def test_a_source_with_a_missing_rank(training: Path) -> None:
    with_strategy(training)
    shutil.rmtree(training / "checkpoint/rank_3")
    assert refusal_of(training).count("is of ranks 0-7, the checkpoint of 0-2,4-7") == 1
    with pytest.raises(CatalogError, match="is of ranks 0-7"):
        assess_recovery(SourceRequest(source=str(training / "checkpoint"), recover=True))


# ---- where none is looked for ----


def test_not_where_the_user_declines(training: Path) -> None:
    named = with_strategy(training)
    request = SourceRequest(source=str(training / "checkpoint"), auto_strategy=False)
    assert find_strategy(request) is None
    with pytest.raises(CatalogError) as caught:
        open_source(request)
    assert str(caught.value).endswith(f"pass 'source_strategy' ({named}, if that is this checkpoint's)")


def test_not_for_a_source_of_one_rank(training: Path) -> None:
    with_strategy(training)
    whole = training / "whole"
    shutil.copytree(PIPELINE.directory / "full", whole)
    assert find_strategy(SourceRequest(source=str(whole))) is None
    [file] = [*(whole / "rank_0").iterdir()]
    assert find_strategy(SourceRequest(source=str(file))) is None
    assert open_source(SourceRequest(source=str(whole))).strategy is None


def test_not_for_a_source_that_has_its_own(training: Path, tmp_path: Path) -> None:
    with_strategy(training)
    made = training / "made"
    convert(
        build_request(
            source=str(training / "checkpoint"),
            target=str(made),
            target_strategy=str(PIPELINE.directory / "dst_strategy.ckpt"),
        )
    )
    assert "beside" not in " ".join(open_source(SourceRequest(source=str(made))).catalog.notes)


def test_not_for_a_pattern(training: Path) -> None:
    with_strategy(training)
    assert find_strategy(SourceRequest(source=f"{training}/checkpoint/rank_{{rank}}")) is None


def test_a_directory_around_it_that_cannot_be_listed(training: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_strategy(training)
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path) == str(training):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert find_strategy(SourceRequest(source=str(training / "checkpoint"))) is None


# ---- whatever reads a source ----


def test_comparisons_and_fingerprints(training: Path) -> None:
    with_strategy(training)
    checkpoint = str(training / "checkpoint")
    document = fingerprint_checkpoint(FingerprintRequest(source=checkpoint))
    assert "using the strategy beside the checkpoint" in document.notes[0]
    same = compare_checkpoints(build_comparison(a=checkpoint, b=str(PIPELINE.directory / "full")))
    assert same.same
    with pytest.raises(CatalogError, match="several ranks need a source strategy"):
        compare_checkpoints(build_comparison(a=checkpoint, b=checkpoint, auto_strategy=False))


def test_what_needs_no_strategy_reads_the_files_all_the_same(training: Path) -> None:
    with_strategy(training, seconds=LATER)
    checkpoint = str(training / "checkpoint")
    report = scan_checkpoint(FingerprintRequest(source=checkpoint))
    assert (report.finite, report.files) == (True, 8)
    [note] = [note for note in report.notes if "beside" in note]
    assert note.startswith(
        f"the strategy beside the checkpoint is not used automatically: {training}/strategy: is consistent, but newer"
    )
    inspected = inspect_parameters(OpenRequest(source=checkpoint), ["global_step"])
    assert note in inspected.notes
    assert len(inspected.parameters[0].contents) == 8


def test_recovery(training: Path) -> None:
    with_strategy(training)
    assert assess_recovery(SourceRequest(source=str(training / "checkpoint"))).recoverable


def test_a_diagnosis_checks_it(training: Path) -> None:
    checkpoint = str(training / "checkpoint")
    assert diagnose(checkpoint).fits is None
    named = with_strategy(training, seconds=LATER)
    diagnosis = diagnose(checkpoint)
    assert (diagnosis.fits, diagnosis.strategy) == (True, str(named))
    note = ("note", f"no strategy was given: checking {named}, the only one beside the checkpoint")
    assert note in diagnosis.facts
    assert diagnose(checkpoint, auto_strategy=False).fits is None
    other = with_strategy(training, "ckpt_strategy.ckpt", PIPELINE.directory / "dst_strategy.ckpt")
    diagnosis = diagnose(checkpoint)
    assert diagnosis.fits is None
    assert ("note", f"there are several strategies beside it: {other} and {named}") in diagnosis.facts


def test_a_diagnosis_of_what_is_no_strategy(training: Path) -> None:
    (training / "ckpt_strategy.ckpt").write_bytes(b"nothing")
    [*_, (name, note)] = diagnose(str(training / "checkpoint")).facts
    assert (name, note.partition(".ckpt: ")[0]) == (
        "note",
        f"the strategy beside it cannot be used: {training}/ckpt_strategy",
    )


# ---- remote ----


@pytest.fixture
def remote(training: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """The training in memory; lists the directories that were listed."""
    with_strategy(training)
    memory = fsspec.filesystem("memory")
    memory.put(str(training / "strategy"), "/bucket/training/strategy", recursive=True)
    memory.put(str(training / "checkpoint"), "/bucket/training/checkpoint", recursive=True)
    listed: list[str] = []
    original = type(memory).ls

    def ls(self: object, path: str, *args: object, **options: object) -> object:
        listed.append(path)
        return original(self, path, *args, **options)

    monkeypatch.setattr(type(memory), "ls", ls)
    yield lambda: listed
    forget_memory()


def test_few_listings_of_the_directory_around_it(remote: Callable[[], list[str]]) -> None:
    found = find_strategy(SourceRequest(source="memory://bucket/training/checkpoint"))
    assert isinstance(found, Strategy)
    assert [path.strip("/") for path in remote()].count("bucket/training") == 2


def test_it_is_opened_with_the_sources_options(
    remote: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", json.dumps({"mark": "a"}))
    seen: list[object] = []

    def reading(url: str) -> object:
        seen.append(options_for(url))
        raise CatalogError("enough")

    monkeypatch.setattr("reshard.core.source.strategy_beside.read_strategy", reading)
    source = "memory://bucket/training/checkpoint"
    with named_storages([(source, "env:MARK")]), pytest.raises(CatalogError, match="enough"):
        find_strategy(SourceRequest(source=source, source_storage="env:MARK"))
    assert seen == [{"mark": "a"}]
