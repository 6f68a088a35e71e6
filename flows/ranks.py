"""Runs the ranks of a conversion as tasks behind a task runner, and collects what failed.

A rank, or a group of ranks that share reads, is read back as soon as it is written, while it may still be in memory. So
no more are begun than there are workers; the others wait here, not as thousands of pending task runs.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from queue import SimpleQueue

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectConcurrentFuture
from prefect.task_runners import ThreadPoolTaskRunner

from core.errors import ConversionError, ReshardError
from core.session import Session
from tasks.conversion import transform_rank
from tasks.progress import RunProgress
from tasks.verification import verify_rank

Future = PrefectConcurrentFuture[int]
Failures = dict[int, ReshardError]


def run_ranks(session: Session, progress: RunProgress) -> Failures:
    """Writes and verifies all ranks that are left to do; returns what failed, by rank. One's failure stops no other.

    Raises:
        Exception: a task met a bug; the others are stopped.
    """
    failures: Failures = {}
    # entered here, not given to the flow: deployments ignore a flow's own task runner options
    runner: ThreadPoolTaskRunner[int] = ThreadPoolTaskRunner(max_workers=session.budget.workers)
    with runner:
        try:
            failures |= _run_turns(session, runner, (_Turn(group[0], group) for group in session.groups))
            orphans = _orphans(session, failures)
            copies = [rank for rank in session.copies if rank not in orphans]
            failures |= orphans | _run_turns(session, runner, (_Turn(rank, ()) for rank in copies))
        except BaseException:
            progress.stop()  # leaving the runner waits for its threads
            raise
    return failures


def _orphans(session: Session, failures: Failures) -> Failures:
    reasons = {rank: session.copy_of_failed(rank, failures) for rank in session.copies}
    return {rank: reason for rank, reason in reasons.items() if reason is not None}


@dataclass(frozen=True)
class _Turn:
    """A rank that is to be written: as one of a group, or as a copy."""

    rank: int
    group: tuple[int, ...]

    @property
    def writes_group(self) -> bool:
        """Whether on this turn a whole group's files are written."""
        return self.rank == next(iter(self.group), None)


def _run_turns(session: Session, runner: ThreadPoolTaskRunner[int], turns: Iterable[_Turn]) -> Failures:
    failures: Failures = {}
    finished: SimpleQueue[Future] = SimpleQueue()
    under_way: dict[Future, tuple[_Turn, Task[..., int]]] = {}
    waiting = deque(turns)

    def start(task: Task[..., int], turn: _Turn, **parameters: object) -> None:
        plan = {"plan_url": session.workspace.plan_url, "identity": session.workspace.identity}
        future: Future = runner.submit(task, plan | {"rank": turn.rank} | parameters)
        under_way[future] = (turn, task)
        future.add_done_callback(finished.put)  # type: ignore[arg-type]

    def may_start(turn: _Turn) -> bool:
        writing = sum(other.writes_group and task is transform_rank for other, task in under_way.values())
        return not turn.writes_group or writing < session.groups_at_once

    def start_waiting() -> None:
        while waiting and len(under_way) < session.budget.workers and may_start(waiting[0]):
            turn = waiting.popleft()
            start(transform_rank, turn, budget=session.budget, group=turn.group, lanes=session.lanes)

    start_waiting()
    while under_way:
        future = finished.get()
        turn, task = under_way.pop(future)
        failure = failure_of(future)
        if failure is not None:
            failures[turn.rank] = failure
        elif task is transform_rank:
            start(verify_rank, turn, level=session.request.verify)
        if task is transform_rank and turn.writes_group:
            # its files are there now: the others' turns are short, and verify what may still be in memory
            waiting.extendleft(_Turn(rank, turn.group) for rank in reversed(turn.group[1:]))
        start_waiting()
    return failures


def failure_of(future: Future) -> ReshardError | None:
    """What kept a finished task from completing; None if it completed, and only then.

    Raises:
        Exception: the task met a bug.
    """
    lost = future.wrapped_future.exception()
    if lost is not None:
        return ConversionError(f"its task was lost: {type(lost).__name__}: {lost}")
    future.wait()
    state: State[int] = future.state
    if state.is_completed():
        return None
    error = getattr(state.data, "result", state.data)
    if isinstance(error, ReshardError):
        return error
    if state.is_failed() and isinstance(error, Exception):
        raise error
    told = f", {state.message}" if state.message else ""
    return ConversionError(f"its task was lost: it ended as {state.name}{told}")
