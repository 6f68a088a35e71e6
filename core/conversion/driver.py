"""The driver of a conversion: its steps in their order, whatever carries them out.

request filled in, target checked -> plan -> signature of the source checked, if required
-> session: target claimed -> units of work on ranks -> values read -> finish
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from reshard.core.conversion.executor import Executor
from reshard.core.conversion.failures import check_crcs, raise_failures
from reshard.core.conversion.finish import finish
from reshard.core.conversion.left_behind import noting_what_is_left
from reshard.core.conversion.planning import check_target, filled_in, plan_in_steps
from reshard.core.conversion.predecessors import continued_chain
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import Session, SourceParts, open_session
from reshard.core.conversion.source_signature import signed_source, source_guard
from reshard.core.custody.continued import continuing
from reshard.core.custody.source_digests import knowing
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.storage.read_log import ReadLog, logging_reads, planned_from
from reshard.core.target.target import Target

Executing = Callable[[ConversionRequest], AbstractContextManager[Executor]]
"""Provides the executor of a request, once it is known that its target can be used."""


def drive(
    request: ConversionRequest,
    executing: Executing,
    plan_of: Callable[[ConversionRequest], ConversionPlan] | None = None,
) -> ConversionReport:
    """Convert a checkpoint; ranks that an earlier, interrupted run finished are not repeated.

    `plan_of` replaces the steps that make the plan. What the request names, storages and keys, has to be in force.

    Raises:
        InputError: the request, or a file or storage that it names, is wrong.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure.
    """
    started, note = time.monotonic(), current_progress().note
    guard = with_retries(lambda: source_guard(request), note)
    log = ReadLog() if request.hashes_target or guard else None
    with logging_reads(log):
        request = with_retries(lambda: filled_in(request), note)
        with_retries(lambda: check_target(request), note)
    with executing(request) as executor:
        with logging_reads(log):
            plan = executor.step(plan_of, request) if plan_of else plan_in_steps(request, executor.step, crc_later=True)
        with planned_from(log):
            plan, signed = signed_source(guard, request, plan)
            plan, chain = continued_chain(request, plan)
        executor.planned(plan)
        checked = signed.check(request.worker_count) if signed else ()
        target_of = partial(Target.of, request.target, plan, overwrite=request.overwrite)
        # MindSpore's functions, which bring a plan, have directories of their own
        left = nullcontext() if plan_of else noting_what_is_left(target_of)
        with (
            left,
            planned_from(log),
            continuing(chain),
            knowing(checked),
            open_session(request, plan, executor.pool) as session,
        ):
            executor.begun(session)
            _do_ranks(session, executor)
            parts = _read_sources(session, executor) if session.compares() else {}
            return executor.step(finish, session, time.monotonic() - started, parts)


def _do_ranks(session: Session, executor: Executor) -> None:
    """Write and check all ranks that are left; one error names those that failed."""
    dispatch = session.dispatch(max_batches=executor.max_batches(session))
    executor.run(session, dispatch, session.budget.workers)
    check_crcs(session)
    raise_failures(dispatch.failures, session)


def _read_sources(session: Session, executor: Executor) -> SourceParts:
    """Read all source ranks, whose values are compared with the target's."""
    dispatch = session.source_dispatch()
    current_progress().begin("comparing values", session.content.source_bytes())
    parts = executor.run(session, dispatch, session.readers)
    if dispatch.failures:
        raise dispatch.failures[min(dispatch.failures)]
    return parts
