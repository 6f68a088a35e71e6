"""Runs the ranks of a conversion as tasks behind a task runner, and collects what failed.

A rank is read back as soon as it is written, while it may still be in memory. So no more ranks are begun than there are
workers; the others wait here, not as thousands of pending task runs.
"""

from collections.abc import Sequence
from itertools import islice
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
            for wave, as_copy in zip(session.waves, (False, True), strict=True):
                orphans = _orphans(session, wave, failures) if as_copy else {}
                failures |= orphans
                failures |= _run_wave(session, runner, [rank for rank in wave if rank not in orphans], as_copy)
        except BaseException:
            progress.stop()  # leaving the runner waits for its threads
            raise
    return failures


def _orphans(session: Session, copies: Sequence[int], failures: Failures) -> Failures:
    reasons = {rank: session.copy_of_failed(rank, failures) for rank in copies}
    return {rank: reason for rank, reason in reasons.items() if reason is not None}


def _run_wave(session: Session, runner: ThreadPoolTaskRunner[int], ranks: Sequence[int], as_copy: bool) -> Failures:
    failures: Failures = {}
    finished: SimpleQueue[Future] = SimpleQueue()
    under_way: dict[Future, tuple[int, Task[..., int]]] = {}
    waiting = iter(ranks)

    def start(task: Task[..., int], rank: int, **parameters: object) -> None:
        plan = {"plan_url": session.workspace.plan_url, "identity": session.workspace.identity}
        future: Future = runner.submit(task, plan | {"rank": rank} | parameters)
        under_way[future] = (rank, task)
        future.add_done_callback(finished.put)  # type: ignore[arg-type]

    def start_ranks(count: int) -> None:
        for rank in islice(waiting, count):
            start(transform_rank, rank, block_bytes=session.budget.block_bytes, as_copy=as_copy)

    start_ranks(session.budget.workers)
    while under_way:
        future = finished.get()
        rank, task = under_way.pop(future)
        failure = failure_of(future)
        if failure is None and task is transform_rank:
            start(verify_rank, rank, level=session.request.verify)
            continue
        if failure is not None:
            failures[rank] = failure
        start_ranks(1)
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
