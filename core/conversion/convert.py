"""The whole conversion in this process, from the same steps that a workflow runs as tasks.

open_source -> plan_conversion -> open_session -> units of work on ranks -> finish
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from reshard.core.conversion.dispatch import Failures, Kind, Unit, run_in_threads
from reshard.core.conversion.finish import finish, read_source_parts
from reshard.core.conversion.iteration_place import placed
from reshard.core.conversion.planning import check_target, make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import Session, open_session
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.progress import Progress, SilentProgress, advancing, current_progress, reporting_to
from reshard.core.runtime.retry import FailureStreak, counting_retries, stoppable, with_retries
from reshard.core.runtime.threads import rare_collections


def convert(
    request: ConversionRequest,
    progress: Progress | None = None,
    plan_of: Callable[[ConversionRequest], ConversionPlan] | None = None,
) -> ConversionReport:
    """Convert a checkpoint in this process; ranks that an earlier, interrupted run finished are not repeated.

    `plan_of` replaces `make_plan`.

    Raises:
        InputError: the request, or a file or storage that it names, is wrong.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure.
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
        to_carry_out = with_retries(lambda: placed(request), note)
        with_retries(lambda: check_target(to_carry_out), note)
        plan = with_retries(lambda: plan_of(to_carry_out) if plan_of else make_plan(to_carry_out, crc_later=True), note)
        with open_session(to_carry_out, plan) as session:
            failures = run_ranks(session, stop)
            parts = _source_parts(session, stop) if not failures and session.compares() else None
            return with_retries(lambda: finish(session, failures, time.monotonic() - started, parts), note)


def run_ranks(session: Session, stop: threading.Event) -> Failures:
    """Do all ranks that are left, with threads; return what failed. A bug, or `stop`, ends all at once."""
    progress = current_progress()
    work = session.work(advancing(progress, stop))
    dispatch = session.dispatch(separate_checks=True)
    streak: dict[Unit, FailureStreak] = defaultdict(FailureStreak)

    def do(unit: Unit) -> None:
        with streak[dispatch.origin(unit)].counted():
            if unit.kind is Kind.CHECK:
                with_retries(lambda: work.check(unit.rank), progress.note)
            else:
                with_retries(lambda: work.make(unit), progress.note)

    def stopping() -> None:
        stop.set()
        if session.is_remote:
            progress.note("stopping: waiting for requests in flight")

    run_in_threads(dispatch, do, session.budget.workers, session.prefetch, stopping)
    return dispatch.failures


def _source_parts(session: Session, stop: threading.Event) -> dict[int, np.ndarray]:
    from reshard.core.verification.values import ContentCheck

    content = ContentCheck(session.plan)
    return read_source_parts(session, content, content.source_ranks, stop)
