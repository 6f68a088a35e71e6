"""The whole conversion, as steps that any engine can run: alone in this process, or as tasks of a workflow.

    load_strategies -> catalog_source -> plan_conversion -> open_session -> convert_rank, check_rank … -> Session.finish

`convert` runs them with threads.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context

import numpy as np

from reshard.core.conversion.planning import check_target, make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import (
    Session,
    check_rank,
    convert_rank,
    open_session,
)
from reshard.core.errors import ReshardError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import (
    ConversionRequest,
)
from reshard.core.request.resources import resources_of
from reshard.core.runtime.progress import Progress, SilentProgress, advancing, current_progress, reporting_to
from reshard.core.runtime.retry import Losses, counting_retries, stoppable, with_retries
from reshard.core.runtime.threads import in_threads, rare_collections
from reshard.core.verification.values import ContentCheck


def convert(
    request: ConversionRequest,
    progress: Progress | None = None,
    plan_of: Callable[[ConversionRequest], ConversionPlan] | None = None,
) -> ConversionReport:
    """Converts a checkpoint in this process; what was done by an earlier, interrupted run is not done again.

    `plan_of` makes the plan if another one than `make_plan`'s is wanted.

    Raises:
        InputError: the request or what it names is wrong.
        VerificationError: a written file is not what it was to be.
        ConversionError: it failed all the same.
    """
    with (
        reporting_to(progress or SilentProgress()),
        resources_of(request),
        counting_retries(),
        stoppable() as stop,
        rare_collections(),
    ):
        started = time.monotonic()
        note = current_progress().note
        with_retries(lambda: check_target(request), note)
        plan = with_retries(lambda: (plan_of or make_plan)(request), note)
        with open_session(request, plan) as session:
            failures = _run_ranks(session, stop)
            parts = _source_parts(session, stop) if not failures and session.compares() else None
            return with_retries(lambda: session.finish(failures, time.monotonic() - started, parts), note)


def _run_ranks(session: Session, stop: threading.Event) -> dict[int, ReshardError]:
    """Does all ranks that are left, with threads; returns what failed. A bug, or `stop`, ends all at once."""
    failures: dict[int, ReshardError] = {}
    writing = threading.Semaphore(session.groups_at_once)
    progress = current_progress()
    advance = advancing(progress, stop)

    def work(rank: int, group: Sequence[int]) -> None:
        orphaned = None if group else session.copy_of_failed(rank, failures)
        if orphaned is not None:
            raise orphaned
        # who comes later in a group finds its file written
        with writing if rank == next(iter(group), None) else nullcontext():
            with_retries(
                lambda: convert_rank(
                    session.workspace,
                    session.plan,
                    rank,
                    session.budget,
                    advance,
                    group=group,
                    prefetch=session.prefetch,
                ),
                progress.note,
            )
        with_retries(
            lambda: check_rank(session.workspace, session.plan, rank, session.request.verify, advance), progress.note
        )

    def work_in_turn(ranks: Sequence[int], group: Sequence[int]) -> None:
        losses = Losses()
        for rank in ranks:
            if stop.is_set():
                return
            try:
                with losses.counted():
                    work(rank, group)
            except ReshardError as error:
                failures[rank] = error

    groups = [(group, group) for group in session.groups]
    copies = [((rank,), ()) for rank in session.copies]
    with ThreadPoolExecutor(session.budget.workers, thread_name_prefix="reshard") as pool:
        try:
            for turns in (groups, copies):
                futures = [pool.submit(copy_context().run, work_in_turn, ranks, group) for ranks, group in turns]
                for future in futures:
                    future.result()
        except BaseException:
            stop.set()
            if session.is_remote:
                progress.note("stopping: requests that are under way are waited for")
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def _source_parts(session: Session, stop: threading.Event) -> dict[int, np.ndarray]:
    """What all source ranks add to fingerprints; read with threads."""
    progress = current_progress()
    progress.note("comparing the target's values with the source's: every copy of these is read")
    content = ContentCheck(session.plan)
    advance = advancing(progress, stop)

    def read(rank: int) -> np.ndarray:
        return with_retries(lambda: content.source_parts(rank, advance), progress.note)

    ranks = content.source_ranks
    return dict(zip(ranks, in_threads(read, ranks, session.readers, stop), strict=True))
