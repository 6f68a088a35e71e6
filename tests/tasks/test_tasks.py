"""The tasks as plain functions, and what Prefect does with them and what they get."""

import contextvars
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import disable_run_logger
from prefect.states import Failed
from prefect.utilities.annotations import quote
from prefect.utilities.collections import StopVisiting, visit_collection

from reshard.core.conversion.convert import convert
from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import InputError, PlanError, StoppedError, StorageError, TargetError
from reshard.core.request.resources import resources_of
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.progress import SilentProgress, reporting_to
from reshard.tasks.assignment import Assignment
from reshard.tasks.catalog import open_source
from reshard.tasks.conversion import commit_target, transform_rank, transform_ranks
from reshard.tasks.planning import plan_conversion
from reshard.tasks.policies import retry_transient, untouched
from reshard.tasks.progress import RunProgress
from reshard.tasks.strategies import find_source_strategy, outline_target
from reshard.tasks.verification import verify_rank
from tests.support.checkpoints import case, read_tree

FOUR_TO_THREE = case(7009)
FIRST_RANK = Unit(Kind.WRITE, (0,))
STORAGE_TASKS = [
    find_source_strategy,
    outline_target,
    open_source,
    transform_rank,
    transform_ranks,
    verify_rank,
    commit_target,
]


def test_the_tasks_are_a_conversion(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    source_request = SourceRequest.of(request)
    strategy, target = find_source_strategy.fn(source_request), outline_target.fn(request)
    plan = plan_conversion.fn(request, open_source.fn(source_request, strategy, target), target)
    with open_session(request, plan) as session:
        assignment = Assignment.of(session)
        for rank in session.ranks:
            written = transform_rank.fn(assignment, Unit(Kind.WRITE, (rank,)))
            assert str(written.message).startswith(f"rank {rank}: ")
            assert "from source ranks" in str(written.message)
            checked = verify_rank.fn(assignment, Unit(Kind.CHECK, (rank,)))
            assert str(checked.message).startswith(f"rank {rank}: every byte is right")
        report = commit_target.fn(session, 1.0)
    assert report.committed
    assert read_tree(tmp_path / "out") == FOUR_TO_THREE.want


def test_a_first_stage_that_may_be_all_there_is_is_not_planned(tmp_path: Path) -> None:
    stages = case(7010).directory
    for rank in range(4):
        shutil.copytree(stages / f"src/rank_{rank}", tmp_path / f"src/rank_{rank}")
    shutil.copy(stages / "src_stages/strategy_0.ckpt", tmp_path)
    own = str(tmp_path / "strategy_0.ckpt")
    request = case(7010).request(tmp_path / "out", source=str(tmp_path / "src"), source_strategy=own)
    source_request, target = SourceRequest.of(request), outline_target.fn(request)
    source = open_source.fn(source_request, find_source_strategy.fn(source_request), target)
    with pytest.raises(PlanError, match="4 parameters of the target's strategy are in no source file"):
        plan_conversion.fn(request, source, target)


def test_no_strategy_is_no_cut(tmp_path: Path) -> None:
    assert find_source_strategy.fn(SourceRequest(source=str(tmp_path))) is None
    assert outline_target.fn(FOUR_TO_THREE.request(tmp_path / "out", target_strategy="")).strategy is None


def test_another_plan_in_the_workspace_is_noticed(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with open_session(request, make_plan(request)) as session:
        other = replace(Assignment.of(session), identity="0" * 32)
        with pytest.raises(TargetError, match="another conversion"):
            transform_rank.fn(other, FIRST_RANK)


def test_another_key_of_the_same_name_in_another_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    source, strategy = str(tmp_path / "src"), str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    convert(FOUR_TO_THREE.request(source, encrypt_key="env:KEY"))
    keys = {"source": source, "source_strategy": strategy, "decrypt_key": "env:KEY"}
    request = FOUR_TO_THREE.request(tmp_path / "out", **keys)
    with resources_of(request), open_session(request, make_plan(request)) as session, disable_run_logger():
        assignment = Assignment.of(session)
        monkeypatch.setenv("KEY", "16 other letters")
        with pytest.raises(InputError, match=r"^env:KEY: is another key on .* than where the run began: give it"):
            contextvars.Context().run(transform_rank.fn, assignment, FIRST_RANK)


def failed(error: BaseException) -> State[object]:
    return Failed(data=error)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StorageError("slow down", transient=True), True),
        (StorageError("no such bucket"), False),
        (TimeoutError(), True),
        (InputError("wrong"), False),
        (KeyError("a bug"), False),
    ],
)
def test_only_transient_failures_are_tried_again(error: Exception, again: bool) -> None:
    assert retry_transient(transform_rank, None, failed(error)) is again  # type: ignore[arg-type]


@pytest.mark.parametrize("task", STORAGE_TASKS, ids=lambda task: task.name)
def test_tasks_that_use_a_storage_try_again_with_growing_pauses(task: Task[..., object]) -> None:
    assert task.retry_condition_fn is retry_transient
    pauses = task.retry_delay_seconds
    assert isinstance(pauses, list)
    assert len(pauses) == task.retries == 3
    assert pauses == sorted(set(pauses))
    assert task.retry_jitter_factor


@pytest.mark.parametrize("task", [*STORAGE_TASKS, plan_conversion], ids=lambda task: task.name)
def test_nothing_is_cached_or_kept(task: Task[..., object]) -> None:
    assert task.cache_policy is NO_CACHE
    assert task.persist_result is False


def test_prefect_does_not_search_untouched_values() -> None:
    inner = object()
    seen: list[object] = []
    value = untouched({"layouts": [inner]})

    def visit(item: object, context: dict[str, object]) -> object:
        seen.append(item)
        if isinstance(context.get("annotation"), quote):
            raise StopVisiting
        return item

    visit_collection(value, visit, context={})
    assert inner not in seen


def test_work_ends_at_its_next_block_when_the_run_is_stopped() -> None:
    with disable_run_logger():
        progress = RunProgress(SilentProgress(), threading.Event())
    progress.advance(1)
    progress.stop()
    with pytest.raises(StoppedError, match="stopped"):
        progress.advance(1)


def test_a_task_that_is_stopped_is_cancelled_and_did_not_fail(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with resources_of(request), open_session(request, make_plan(request)) as session, disable_run_logger():
        progress = RunProgress(SilentProgress(), threading.Event())
        progress.stop()
        with reporting_to(progress):
            ended: State[Any] = transform_rank.fn(Assignment.of(session), FIRST_RANK)
    assert ended.is_cancelled()
    assert isinstance(ended.data, StoppedError)
