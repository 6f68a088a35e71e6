"""How units of work on ranks become tasks: alone, or in batches where there are many."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect import Task
from prefect.logging import disable_run_logger
from prefect.states import Completed

from reshard.core.conversion.dispatch import Dispatch, Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import Session, open_session
from reshard.core.errors import ConversionError, StorageError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.budget import WorkerPool
from reshard.core.runtime.progress import SilentProgress
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.executor import TaskExecutor
from reshard.flows.ranks import RankTasks, failures_of
from reshard.flows.runner import RunnerLostError
from reshard.flows.slots import Slot
from reshard.tasks.assignment import TaskResult
from reshard.tasks.conversion import transform_rank, transform_ranks
from reshard.tasks.progress import RunProgress
from tests.support.checkpoints import case, read_tree
from tests.support.columns import column_case
from tests.support.conversions import failing
from tests.support.flow_runs import Run

FOUR_TO_THREE = case(7009)
PIPELINES = case(7001)
"""8 ranks to 12."""


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two ranks are done in three batches."""
    monkeypatch.setattr("reshard.flows.executor.MAX_SINGLE_RANKS", 2)
    monkeypatch.setattr("reshard.flows.executor.MAX_BATCHES", 3)
    monkeypatch.setattr(transform_ranks, "retry_delay_seconds", [0.01] * 3)


def converted(request: ConversionRequest) -> Run[ConversionRequest, ConversionReport]:
    return Run(convert_checkpoint, request)


def messages(run: Run[Any, Any], count: int) -> dict[str, str]:
    """Messages of a run's finished tasks, when there are so many."""
    found = run.tasks(lambda found: len(found) >= count)
    return {name: str(task.state and task.state.message) for name, task in found.items()}


# ---- what tasks say ----


def test_a_task_says_what_it_did(tmp_path: Path) -> None:
    reason = messages(converted(FOUR_TO_THREE.request(tmp_path / "out", ranks="0-1")), 9)
    assert reason["transform-rank-0"].startswith("rank 0: ")
    assert " from source ranks 0" in reason["transform-rank-0"]
    assert reason["verify-rank-1"].startswith("rank 1: every byte is right, ")


# ---- batches ----


@pytest.mark.usefixtures("batches")
def test_many_ranks_are_done_in_batches(tmp_path: Path) -> None:
    run = converted(PIPELINES.request(tmp_path / "out", workers=12))
    assert run.state.result().committed
    assert read_tree(tmp_path / "out") == PIPELINES.want
    reason = messages(run, 8)
    assert {name for name in reason if "rank" in name} == {f"transform-ranks-{a}-{a + 3}" for a in (0, 4, 8)}
    assert reason["transform-ranks-0-3"].startswith("ranks 0-3: written and checked in ")


@pytest.mark.usefixtures("batches")
def test_ranks_that_share_reads_are_one_batch(tmp_path: Path) -> None:
    columns = column_case(tmp_path)
    report = convert_checkpoint(columns.request(workers=1))
    assert report.read_bytes == columns.source_bytes
    assert read_tree(columns.target) == columns.want


@pytest.mark.usefixtures("batches")
def test_ranks_of_a_batch_fail_by_name_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch, lambda rank: StorageError("broken") if rank in (1, 6) else None)
        state = converted(PIPELINES.request(tmp_path / "out", workers=12)).state
    assert str(state.message).startswith("2 of 12 target ranks failed")
    assert "\n  rank_1: broken\n  rank_6: broken\nleft in " in str(state.message)
    tried = failing(monkeypatch, lambda _: None)
    assert convert_checkpoint(PIPELINES.request(tmp_path / "out", workers=12)).committed
    assert sorted(tried) == [1, 6]


@pytest.mark.usefixtures("batches")
def test_a_batch_that_is_tried_again_does_what_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([StorageError("slow down", transient=True)])
    tried = failing(monkeypatch, lambda rank: next(failures, None) if rank == 5 else None)
    assert convert_checkpoint(PIPELINES.request(tmp_path / "out", workers=12)).committed
    assert sorted(tried) == sorted([*range(12), 5])


@pytest.mark.usefixtures("batches")
def test_a_storage_that_is_down_is_not_asked_for_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.flows.executor.MAX_BATCHES", 1)
    monkeypatch.setattr(transform_ranks, "retries", 0)
    tried = failing(monkeypatch, lambda _: StorageError("down", transient=True))
    with pytest.raises(ConversionError, match="12 of 12 target ranks failed.*(?s:.*)rank_11: not tried"):
        convert_checkpoint(PIPELINES.request(tmp_path / "out", workers=12))
    assert tried == [0, 1, 2]


@pytest.mark.usefixtures("batches")
def test_a_lost_batch_fails_all_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda rank: SystemExit("gone") if rank == 4 else None)
    state = converted(PIPELINES.request(tmp_path / "out", workers=12)).state
    assert state.is_failed()
    for rank in range(4, 8):
        assert f"rank_{rank}: its task was lost: SystemExit: gone" in str(state.message)
    assert "rank_3" not in str(state.message)


def test_what_is_no_state_is_a_lost_task() -> None:
    [failure] = failures_of(KeyError("killed"), Unit(Kind.CHECK, (3,))).values()
    assert str(failure) == "its task was lost: KeyError: 'killed'"


# ---- what is lost ----


class _Ended:
    """The future of a task that has ended."""


class _OneByOne:
    """Does ranks at once, as one worker would; before its task of number `lost` the scheduler goes away."""

    pool = WorkerPool(1, 1)

    def __init__(self, session: Session, lost: int) -> None:
        self._session = session
        self._left = lost

    def capacity(self, max_in_each: int) -> int:
        return 1

    def submit(self, task: Task[..., Any], parameters: dict[str, Any], ended: Callable[[Any], None]) -> Any:
        self._left -= 1
        if not self._left:
            raise RunnerLostError("the scheduler no longer answers")
        work, unit = self._session.work(lambda _: None), parameters["unit"]
        if task is transform_rank:
            work.make(unit)
        else:
            work.check(unit.rank)
        future = _Ended()
        ended(future)
        return future

    def outcome(self, future: Any, ended: Callable[[Any], None]) -> Any:
        return Completed(data=TaskResult())

    def check(self) -> None:
        pass


@pytest.mark.parametrize("lost", range(1, 7))
def test_a_rank_that_could_not_be_handed_out_is_lost(tmp_path: Path, lost: int) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with open_session(request, make_plan(request)) as session, disable_run_logger():
        progress, dispatch = RunProgress(SilentProgress(), threading.Event()), session.dispatch()
        TaskExecutor(progress, _OneByOne(session, lost)).run(session, dispatch, 1)
    # each rank has two tasks, one after the other
    assert sorted(dispatch.failures) == list(range((lost - 1) // 2, 3))
    assert all("its task was lost: the scheduler" in str(failure) for failure in dispatch.failures.values())


def test_a_slot_goes_to_the_group_that_asked_for_it(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    asked: list[Any] = []
    with open_session(request, make_plan(request)) as session, disable_run_logger():
        slots: Any = SimpleNamespace(ask=asked.append)
        progress = RunProgress(SilentProgress(), threading.Event())
        one, other = Unit(Kind.WRITE, (0, 1)), Unit(Kind.WRITE, (2,))
        dispatch = Dispatch([one, other])
        tasks = RankTasks(dispatch, session, _OneByOne(session, 0), slots, progress)
        tasks._begin_ready()
        first, second = Slot(uuid4(), time.monotonic()), Slot(uuid4(), time.monotonic())
        tasks._take(first)
        # the first rank of the group is written: the next one is put before those that wait
        dispatch.end(dispatch.begin(), {})
        tasks._asked = True
        tasks._take(second)
    assert tasks._slot_of == {one: first, other: second}


def test_a_slot_that_nobody_waits_for_any_more_is_given_back(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    given_back: list[Slot] = []
    with open_session(request, make_plan(request)) as session, disable_run_logger():
        slots: Any = SimpleNamespace(ask=lambda _: None, give_back=given_back.append)
        progress = RunProgress(SilentProgress(), threading.Event())
        dispatch = Dispatch([Unit(Kind.WRITE, (2,))])
        tasks = RankTasks(dispatch, session, _OneByOne(session, 0), slots, progress)
        dispatch.begin()
        late = Slot(uuid4(), time.monotonic())
        tasks._take(late)
    assert given_back == [late]
