"""How ranks become tasks: alone, in batches where there are many, and with slots of a concurrency limit."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect import Task, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
from prefect.logging import disable_run_logger
from prefect.states import Completed

from reshard.core.conversion.dispatch import Dispatch, Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import Session, open_session
from reshard.core.errors import ConversionError, InputError, StorageError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.budget import WorkerPool
from reshard.core.runtime.progress import SilentProgress
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.ranks import _Tasks, failures_of, run_ranks
from reshard.flows.runner import RunnerLostError
from reshard.flows.slots import Slot
from reshard.tasks.assignment import TaskResult
from reshard.tasks.conversion import transform_rank, transform_ranks
from reshard.tasks.progress import RunProgress
from tests.support.checkpoints import case, read_tree
from tests.support.columns import COLUMN_RANKS, column_case
from tests.support.conversions import failing
from tests.support.flow_runs import Run

FOUR_TO_THREE = case(7009)
PIPELINES = case(7001)
"""8 ranks to 12."""


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two ranks are done in three batches."""
    monkeypatch.setattr("reshard.flows.ranks.MAX_SINGLE_RANKS", 2)
    monkeypatch.setattr("reshard.flows.ranks.MAX_BATCHES", 3)
    monkeypatch.setattr(transform_ranks, "retry_delay_seconds", [0.01] * 3)


@pytest.fixture
def limit() -> Iterator[str]:
    """A limit of one slot."""
    name = f"limit-{uuid4().hex[:8]}"
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    yield name
    with get_client(sync_client=True) as client, suppress(Exception):
        client.delete_global_concurrency_limit_by_name(name)


def slots_taken(name: str) -> int:
    with get_client(sync_client=True) as client:
        return int(client.read_global_concurrency_limit_by_name(name).active_slots)


def converted(request: ConversionRequest) -> Run[ConversionRequest, ConversionReport]:
    return Run(convert_checkpoint, request)


def messages(run: Run[Any, Any], count: int) -> dict[str, str]:
    """Messages of a run's finished tasks, when there are so many."""
    found = run.tasks(lambda found: len(found) >= count)
    return {name: str(task.state and task.state.message) for name, task in found.items()}


# ---- what tasks say ----


def test_a_task_says_what_it_did(tmp_path: Path) -> None:
    told = messages(converted(FOUR_TO_THREE.request(tmp_path / "out", ranks="0-1")), 9)
    assert told["transform-rank-0"].startswith("rank 0: ")
    assert " from source ranks 0" in told["transform-rank-0"]
    assert told["verify-rank-1"].startswith("rank 1: every byte is right, ")


# ---- batches ----


@pytest.mark.usefixtures("batches")
def test_many_ranks_are_done_in_batches(tmp_path: Path) -> None:
    run = converted(PIPELINES.request(tmp_path / "out", workers=12))
    assert run.state.result().committed
    assert read_tree(tmp_path / "out") == PIPELINES.want
    told = messages(run, 8)
    assert {name for name in told if "rank" in name} == {f"transform-ranks-{a}-{a + 3}" for a in (0, 4, 8)}
    assert told["transform-ranks-0-3"].startswith("ranks 0-3: written and checked in ")


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
    assert str(state.message).endswith("\n  rank_1: broken\n  rank_6: broken")
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
    monkeypatch.setattr("reshard.flows.ranks.MAX_BATCHES", 1)
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


# ---- slots ----


def test_ranks_hold_a_slot_while_they_are_written_and_checked(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    at_work: list[int] = []
    lock = threading.Lock()

    def seen(step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(work: RankWork, rank: Unit | int) -> Any:
            number = rank.rank if isinstance(rank, Unit) else rank
            with lock:
                at_work.append(number)
                taken.append(slots_taken(limit))
                assert set(at_work) == {number}, "two at once"
            try:
                return step(work, rank)
            finally:
                at_work.remove(number)

        return counted

    monkeypatch.setattr(RankWork, "make", seen(RankWork.make))
    monkeypatch.setattr(RankWork, "check", seen(RankWork.check))
    report = convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=3))
    assert report.committed
    assert taken == [1] * 6
    assert slots_taken(limit) == 0


def test_a_slot_is_freed_however_a_task_ends(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: StorageError("broken"), 1: SystemExit("gone"), 2: KeyError("a bug")}
    failing(monkeypatch, ends.get)
    with pytest.raises(KeyError):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=3))
    assert slots_taken(limit) == 0


def test_two_runs_share_a_limit(limit: str, tmp_path: Path) -> None:
    reports: list[ConversionReport] = []

    def convert(name: str) -> None:
        reports.append(convert_checkpoint(FOUR_TO_THREE.request(tmp_path / name, concurrency_limit=limit)))

    runs = [threading.Thread(target=convert, args=(name,)) for name in ("one", "other")]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert [report.committed for report in reports] == [True, True]
    assert slots_taken(limit) == 0


def test_a_run_that_waits_for_a_slot_can_be_stopped(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.concurrency.sync import concurrency

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with concurrency(limit, strict=True):
        monkeypatch.setattr("reshard.flows.runners.ThreadRunner.check", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit))
        assert slots_taken(limit) == 1
    assert slots_taken(limit) == 0


def test_a_limit_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    state = converted(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit="nobody")).state
    assert "concurrency_limit nobody: " in str(state.message)
    assert "`prefect gcl create nobody --limit N`" in str(state.message)
    with pytest.raises(InputError):
        state.result()
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_is_deleted_meanwhile_fails_the_run(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(_: int) -> None:
        with get_client(sync_client=True) as client, suppress(Exception):
            client.delete_global_concurrency_limit_by_name(limit)

    failing(monkeypatch, delete)
    with pytest.raises(ConversionError, match=f"no slot of the concurrency limit {limit} can be had"):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=1))


def test_an_inactive_limit_holds_nobody_up(limit: str, tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        client.update_global_concurrency_limit(limit, GlobalConcurrencyLimitUpdate(active=False))
    assert convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit)).committed


@pytest.mark.parametrize("ranks", [COLUMN_RANKS])
def test_a_group_takes_one_slot(limit: str, tmp_path: Path, ranks: int) -> None:
    columns = column_case(tmp_path)
    report = convert_checkpoint(columns.request(workers=4, concurrency_limit=limit))
    assert len(report.ranks) == ranks
    assert read_tree(columns.target) == columns.want


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
            raise RunnerLostError("the scheduler does not answer any more")
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
        failures = run_ranks(session, RunProgress(SilentProgress(), threading.Event()), _OneByOne(session, lost))
    # each rank has two tasks, one after the other
    assert sorted(failures) == list(range((lost - 1) // 2, 3))
    assert all("its task was lost: the scheduler" in str(failure) for failure in failures.values())


def test_a_slot_goes_to_the_group_that_asked_for_it(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    asked: list[Any] = []
    with open_session(request, make_plan(request)) as session, disable_run_logger():
        slots: Any = SimpleNamespace(ask=asked.append)
        progress = RunProgress(SilentProgress(), threading.Event())
        one, other = Unit(Kind.WRITE, (0, 1)), Unit(Kind.WRITE, (2,))
        dispatch = Dispatch([one, other])
        tasks = _Tasks(dispatch, session, _OneByOne(session, 0), slots, progress)
        tasks._begin_ready()
        first, second = Slot(), Slot()
        tasks._take(first)
        # the first rank of the group is written: the next one is put before those that wait
        dispatch.end(dispatch.begin(), {})
        tasks._asked = True
        tasks._take(second)
    assert tasks._slot_of == {one: first, other: second}
