"""The flow on a real Prefect server: what it makes, what its users see, and that nothing that failed looks done."""

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import prefect.task_engine
import pytest
from msgspec.structs import replace
from prefect import Task
from prefect.exceptions import ParameterTypeError
from prefect.states import Pending

import reshard.core.transfer.reader
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion.dispatch import Unit
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import ConversionError, InputError, ReshardError, StorageError, TargetError, text_with_notes
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.runtime.progress import reporting_to
from reshard.core.runtime.wording import size_text
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.verification.compare import compare_checkpoints
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.outcome import tail_of
from reshard.tasks.conversion import transform_rank
from reshard.tasks.pages import as_paragraph
from tests.support.checkpoints import ALL_CASES, Case, case, read_safetensors, read_tree
from tests.support.columns import COLUMN_RANKS, column_case
from tests.support.conversions import failing
from tests.support.dcp import dcp_case
from tests.support.flow_runs import Run
from tests.support.iterations import iteration_case, iteration_request, read_metadata, tracked
from tests.support.megatron import megatron_case
from tests.support.patience import PATIENCE_SECONDS

FOUR_TO_THREE = case(7009)
"""MindSpore itself refuses it: the device counts do not divide."""
PIPELINES = case(7001)
"""Two pipeline stages on both sides, 8 ranks to 12."""
FOUR_TO_FOUR = case(7003)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def converted(request: ConversionRequest) -> Run[ConversionRequest, ConversionReport]:
    return Run(convert_checkpoint, request)


def states(run: Run[Any, Any], names: set[str]) -> dict[str, str]:
    """The states that its tasks ended in, when these have."""
    return {name: str(task.state_name) for name, task in run.tasks(lambda found: names <= found.keys()).items()}


def strategy_of_copies(path: Path) -> Path:
    """A strategy under which three ranks hold everything whole, so that two of them are copies."""
    strategy = read_strategy(str(FOUR_TO_THREE.directory / "dst_strategy.ckpt"))
    [stage] = strategy.stages
    layouts = {name: whole_layout(len(layout.tensor_map), 3) for name, layout in stage.layouts.items()}
    write_strategy(replace(strategy, stages=(replace(stage, layouts=layouts),)), str(path))
    return path


# ---- what it makes ----


QUICK = (PIPELINES, FOUR_TO_THREE, FOUR_TO_FOUR)
EVERY_CASE = [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in ALL_CASES]


@pytest.mark.parametrize("conversion", EVERY_CASE, ids=lambda case: case.directory.name)
@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_writes_what_mindspore_would(conversion: Case, format: str, target: Path) -> None:
    report = convert_checkpoint(conversion.request(target, format=format))
    assert report.committed
    assert read_tree(target) == conversion.want


def test_converts_what_it_made_by_the_strategy_that_it_was_made_by(target: Path, tmp_path: Path) -> None:
    convert_checkpoint(FOUR_TO_THREE.request(target))
    options = {"source": str(target), "source_strategy": ""}
    report = convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "again", **options))
    assert read_tree(tmp_path / "again") == FOUR_TO_THREE.want
    assert any("its strategy is its own" in note for note in report.notes)


def test_an_iteration_is_written_and_tracked(target: Path) -> None:
    iteration = iteration_case(6)
    request = iteration_request(
        iteration.source, target, target_strategy=str(iteration.iteration / "metadata.json"), verify="content"
    )
    run = converted(request)
    assert run.state.is_completed()
    assert run.state.result().target == str(target / "iteration_00000040")
    assert read_metadata(target / "iteration_00000040")["state_dict_metadata"]
    assert tracked(target) == "40"


def test_its_provenance_names_the_run_and_what_its_tasks_read(target: Path) -> None:
    run = converted(FOUR_TO_THREE.request(target, sha256="target"))
    predicate = json.loads((target / ".reshard" / "provenance.intoto.json").read_text())["predicate"]
    invocation = predicate["runDetails"]["metadata"]["invocationId"]
    assert invocation == f"{run.state.result().identity}/{run.id}"
    dependencies = predicate["buildDefinition"]["resolvedDependencies"]
    assert {each["name"] for each in dependencies if "digest" in each} == {"src_strategy.ckpt", "dst_strategy.ckpt"}


def test_a_checkpoint_of_pytorch_is_a_source(target: Path) -> None:
    dcp = dcp_case("dtypes")
    run = converted(dcp.request(target, layout="unified", verify="content"))
    assert run.state.is_completed()
    assert read_safetensors(target / "model.safetensors") == dcp.whole


@pytest.mark.parametrize("layout", [{"layout": "megatron", "tensor_parallel": 2}, {"layout": "torch_dist"}])
def test_a_checkpoint_of_megatron_is_a_source_and_a_target(target: Path, layout: dict[str, object]) -> None:
    source = str(megatron_case("dist_tp2_pp2_optimizer").source)
    run = converted(build_request(source=source, target=str(target), verify="content", **layout))
    assert run.state.is_completed()
    assert run.state.result().target == str(target / "iter_0000003")
    assert (target / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert compare_checkpoints(build_comparison(a=source, b=str(target))).same


def test_an_occupied_target_is_refused_before_anything_is_read(target: Path) -> None:
    (target / "rank_0").mkdir(parents=True)
    run = converted(FOUR_TO_THREE.request(target, source="/nowhere", source_strategy="/nowhere"))
    assert run.state.message == f"{target}: is not empty. Name another target, or pass overwrite=True to replace it"
    assert "conversion-plan" not in run.artifacts


def test_names_say_what_is_done(target: Path) -> None:
    run = converted(FOUR_TO_THREE.request(target, ranks="0-1"))
    assert run.stored_run.name == f"convert case_7009/src -> {tail_of(str(target))} (ranks 0-1)"
    names = {"merge-strategy-source", "merge-strategy-target", "catalog", "plan", "commit"}
    names |= {f"{step}-rank-{rank}" for step in ("transform", "verify") for rank in range(2)}
    assert states(run, names) == dict.fromkeys(names, "Completed")


def test_leaves_plan_summary_and_a_table_of_the_ranks(target: Path) -> None:
    run = converted(PIPELINES.request(target))
    artifacts = run.artifacts
    assert "8 → 12 ranks" in artifacts["conversion-plan"]
    assert "Verified: every byte" in artifacts["conversion-summary"]
    rows = json.loads(artifacts["conversion-ranks"])
    assert [row["rank"] for row in rows] == list(range(12))
    files = [target / row["file"] for row in rows]
    assert [row["size"] for row in rows] == [size_text(file.stat().st_size) for file in files]


def test_names_of_files_are_text_in_all_that_a_run_leaves(tmp_path: Path) -> None:
    name = "a\x1b[2J\n![x](evil)|<b>"
    source = tmp_path / name
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    for folder in source.glob("rank_*"):
        (file,) = folder.iterdir()
        # no text in UTF-8 either
        file.rename(folder / f"{name}\udcff{folder.name.removeprefix('rank_')}{file.suffix}")
    target = tmp_path / f"{name}-out"
    run = converted(FOUR_TO_THREE.request(target, source=str(source)))
    assert run.state.is_completed()
    assert read_tree(target) == FOUR_TO_THREE.want
    shown = "a\\x1b[2J\\n![x](evil)|<b>"
    assert run.stored_run.name == f"convert {tail_of(str(source))} -> {tail_of(str(target))}"
    assert run.stored_run.name.isprintable()
    pages = [run.artifacts[key] for key in ("conversion-plan", "conversion-summary")]
    for page in pages:
        assert all(line.isprintable() for line in page.split("\n"))
        assert f"| Target | `{tmp_path}/{shown.replace('|', chr(92) + '|')}-out` |" in page
        assert "\n![x]" not in page

    (source / "rank_1" / f"{name}\udcff1.ckpt").write_bytes(b"\x0a\xff\xff\xff")
    failed = converted(FOUR_TO_THREE.request(tmp_path / "other", source=str(source)))
    assert failed.stored_run.state
    assert f"/rank_1/{shown}\\udcff1.ckpt" in str(failed.stored_run.state.message)
    assert as_paragraph(f"/rank_1/{shown}\\udcff1.ckpt") in failed.artifacts["conversion-summary"]


def test_compares_the_values_with_the_sources(target: Path) -> None:
    run = converted(FOUR_TO_THREE.request(target, verify="content"))
    names = {f"fingerprint-source-{rank}" for rank in range(4)}
    assert states(run, names).items() >= dict.fromkeys(names, "Completed").items()
    assert "every value of every copy is the source's" in run.artifacts["conversion-summary"]
    assert json.loads((target / ".reshard/manifest.json").read_text())["verified"] == "content"


def test_values_that_are_not_the_sources_fail_the_run(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = reshard.core.transfer.reader.LocalBlockReader.fill

    def zeroing(self: Any, blocks: Any) -> None:
        fill(self, blocks)
        part = blocks[0].chunks[0]
        blocks[0].buffer[part.position : part.position + part.size_bytes] = 0

    monkeypatch.setattr(reshard.core.transfer.reader.LocalBlockReader, "fill", zeroing)
    state = convert_checkpoint(FOUR_TO_THREE.request(target, verify="content"), return_state=True)
    assert state.is_failed()
    assert "its values differ from the source's" in str(state.message)
    assert not target.exists()


def test_a_second_run_has_nothing_to_do(target: Path) -> None:
    convert_checkpoint(FOUR_TO_THREE.request(target))
    report = convert_checkpoint(FOUR_TO_THREE.request(target))
    assert {rank.outcome for rank in report.ranks} == {"resumed"}


def test_progress_and_notes_reach_the_caller(target: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.total_bytes = self.done_bytes = 0
            self.notes: list[str] = []
            self.lock = threading.Lock()

        def note(self, message: str) -> None:
            self.notes.append(message)

        def begin(self, phase: str, total_bytes: int = 0) -> None:
            self.total_bytes = max(self.total_bytes, total_bytes)

        def advance(self, count_bytes: int) -> None:
            with self.lock:
                self.done_bytes += count_bytes

    listener = Listener()
    with reporting_to(listener):
        convert_checkpoint(FOUR_TO_THREE.request(target))
        convert_checkpoint(FOUR_TO_THREE.request(target))
    assert 0 < listener.total_bytes <= listener.done_bytes
    assert any("already converted and intact" in note for note in listener.notes)


def test_no_more_ranks_at_once_than_workers(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    at_once = highest = begun = 0
    first_three = threading.Barrier(3)

    def count(step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal at_once, highest, begun
            with lock:
                at_once += 1
                begun += 1
                highest = max(highest, at_once)
                waits = begun <= 3
            if waits:
                first_three.wait(PATIENCE_SECONDS)
            try:
                return step(*args, **kwargs)
            finally:
                with lock:
                    at_once -= 1

        return counted

    monkeypatch.setattr(RankWork, "make", count(RankWork.make))
    monkeypatch.setattr(RankWork, "check", count(RankWork.check))
    convert_checkpoint(PIPELINES.request(target, workers=3))
    assert highest == 3


def test_ranks_that_share_reads_are_written_in_one_turn(tmp_path: Path) -> None:
    columns = column_case(tmp_path)
    run = converted(columns.request(workers=1))
    report = run.state.result()
    assert read_tree(columns.target) == columns.want
    assert report.read_bytes == columns.source_bytes
    names = {f"{task}-rank-{rank}" for task in ("transform", "verify") for rank in range(COLUMN_RANKS)}
    ended = states(run, names)
    assert {ended[name] for name in names} == {"Completed"}


def test_a_failing_rank_of_a_group_lets_the_others_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = column_case(tmp_path)
    with monkeypatch.context() as patch:
        tried = failing(patch, lambda rank: StorageError("no") if rank == 0 else None)
        with pytest.raises(ConversionError, match=r"1 of 8 target ranks failed.*\n  rank_0: no"):
            converted(columns.request(workers=1)).state.result()
    assert sorted(tried) == list(range(COLUMN_RANKS))
    assert convert_checkpoint(columns.request(workers=1)).committed
    assert read_tree(columns.target) == columns.want


# ---- what fails ----


def test_a_failing_rank_lets_the_others_finish_and_is_done_alone_next_time(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        tried = failing(patch, lambda rank: StorageError("its disk is broken") if rank == 1 else None)
        run = converted(FOUR_TO_THREE.request(target))
    assert sorted(tried) == [0, 1, 2]
    reason = run.stored_run.state
    assert reason
    assert reason.type.value == "FAILED"
    assert str(reason.message).startswith("1 of 3 target ranks failed")
    assert "\n  rank_1: its disk is broken\nleft in " in str(reason.message)
    with pytest.raises(ConversionError) as raised:
        run.state.result()
    assert text_with_notes(raised.value) == reason.message
    assert "rank_1: its disk is broken" in run.artifacts["conversion-summary"]
    assert not target.exists()

    tried = failing(monkeypatch, lambda rank: None)
    report = convert_checkpoint(FOUR_TO_THREE.request(target))
    assert tried == [1]
    assert [rank.outcome.value for rank in report.ranks] == ["resumed", "written", "resumed"]
    assert read_tree(target) == FOUR_TO_THREE.want


def test_a_transient_failure_is_tried_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_rank, "retry_delay_seconds", [0.01] * 3)
    failures = iter([StorageError("slow down", transient=True)])
    tried = failing(monkeypatch, lambda rank: next(failures, None) if rank == 1 else None)
    assert convert_checkpoint(FOUR_TO_THREE.request(target)).committed
    assert sorted(tried) == [0, 1, 1, 2]


def test_a_permanent_failure_is_not_tried_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = failing(monkeypatch, lambda rank: TargetError("no room"))
    with pytest.raises(InputError, match="3 of 3 target ranks failed"):
        convert_checkpoint(FOUR_TO_THREE.request(target))
    assert sorted(tried) == [0, 1, 2]


def test_copies_of_a_failed_rank_are_not_tried(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = FOUR_TO_THREE.request(target, target_strategy=str(strategy_of_copies(target.parent / "whole.ckpt")))
    with monkeypatch.context() as patch:
        tried = failing(patch, lambda rank: StorageError("broken"))
        with pytest.raises(ConversionError, match="rank_2: not written, because it is a copy of rank_0, which failed"):
            convert_checkpoint(request)
    assert tried == [0]
    report = convert_checkpoint(request)
    assert [rank.outcome.value for rank in report.ranks] == ["written", "copied", "copied"]


@pytest.mark.parametrize("end", [SystemExit("gone"), asyncio.CancelledError("gone"), KeyboardInterrupt("gone")])
def test_a_lost_task_is_never_a_completed_run(
    end: BaseException, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, lambda rank: end if rank == 2 else None)
        run = converted(FOUR_TO_THREE.request(target))
    assert run.stored_run.state_name == "Failed"
    with pytest.raises(ConversionError, match=f"rank_2: its task was lost: {type(end).__name__}: gone"):
        run.state.result()
    assert not target.exists()


def test_a_task_that_never_ran_is_never_a_completed_run(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some task runners leave a future of a worker that died as it was."""
    run_task = prefect.task_engine.run_task_sync

    def lose_ranks(task: Task[..., Any], **options: Any) -> Any:
        return Pending(name="NotReady") if task is transform_rank else run_task(task, **options)

    monkeypatch.setattr("prefect.task_engine.run_task_sync", lose_ranks)
    run = converted(FOUR_TO_THREE.request(target))
    assert run.stored_run.state_name == "Failed"
    with pytest.raises(ConversionError, match="rank_0: its task was lost: it ended as NotReady"):
        run.state.result()


def test_a_bug_is_raised_as_it_is(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda rank: KeyError("a bug") if rank == 1 else None)
    run = converted(FOUR_TO_THREE.request(target))
    assert run.stored_run.state_name == "Failed"
    with pytest.raises(KeyError, match="a bug"):
        run.state.result()


def test_a_failed_run_says_what_it_leaves(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda rank: StorageError("broken") if rank == 1 else None)
    run = converted(FOUR_TO_THREE.request(target))
    left = f"left in {target}.reshard-partial: "
    assert left in str(run.stored_run.state.message if run.stored_run.state else "")
    assert f"\n\n{as_paragraph(left)}" in run.artifacts["conversion-summary"]


def test_variables_of_the_command_are_nothing_to_a_run(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHARD_RANKS", "0")
    monkeypatch.setenv("RESHARD_CAST", "*=float16")
    monkeypatch.setenv("RESHARD_WORKERS", "nonsense")
    assert convert_checkpoint(FOUR_TO_THREE.request(target)).committed
    assert read_tree(target) == FOUR_TO_THREE.want
    assert ConversionRequest(source="a", target="b").ranks == ""


def test_interrupting_a_run_stops_its_ranks(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that would take for ever ends when another one's bug, or a signal, ends the run."""

    def endless(work: RankWork, unit: Unit) -> ShardRecord:
        if unit.rank == 0:
            raise KeyError("a bug")
        while True:
            work.advance(1)
            time.sleep(0.01)

    monkeypatch.setattr(RankWork, "make", endless)
    with pytest.raises(KeyError):
        convert_checkpoint(FOUR_TO_THREE.request(target, workers=3))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"source": "/nowhere/at/all"}, ReshardError, "/nowhere/at/all"),
        ({"source_strategy": "/nowhere/strategy.ckpt"}, InputError, "/nowhere/strategy.ckpt"),
        ({"ranks": "7"}, InputError, "the target has ranks 0 to 2"),
    ],
)
def test_wrong_input_is_the_runs_message(
    options: dict[str, str], kind: type[Exception], message: str, target: Path
) -> None:
    run = converted(FOUR_TO_THREE.request(target, **options))
    with pytest.raises(kind) as raised:
        run.state.result()
    assert message in str(raised.value)
    assert run.stored_run.state
    assert run.stored_run.state.message == str(raised.value)
    assert message in run.artifacts["conversion-summary"]
    assert list(target.parent.iterdir()) == []


def test_an_unreachable_artifact_store_does_not_fail_the_conversion(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr("reshard.tasks.artifacts.create_markdown_artifact", refuse)
    assert convert_checkpoint(FOUR_TO_THREE.request(target)).committed


def test_a_password_in_a_url_is_refused_and_shown_nowhere(target: Path) -> None:
    fields = FOUR_TO_THREE.request(target).model_dump(mode="json")
    with pytest.raises(ParameterTypeError, match="must not carry credentials") as refused:
        convert_checkpoint(fields | {"source": "memory://bob:hunter2@bucket/run"})  # type: ignore[call-overload]
    assert "hunter2" not in str(refused.value)
