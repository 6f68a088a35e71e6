"""The flow `convert-checkpoint`: reshards one checkpoint."""

import time
from collections.abc import Callable
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from reshard.core.conversion.finish import raise_failures
from reshard.core.conversion.iteration_place import placed
from reshard.core.conversion.planning import check_target
from reshard.core.conversion.report import ConversionReport, summarize_plan
from reshard.core.conversion.session import open_session
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.retry import with_retries
from reshard.flows.outcome import carried_out, check_output, tail_of
from reshard.flows.ranks import read_sources, run_ranks
from reshard.flows.runners import PoolRunner, worker_pool
from reshard.flows.slots import Slots, slots_of
from reshard.tasks.artifacts import publish_plan, publish_report
from reshard.tasks.assets import record_assets, records_assets
from reshard.tasks.catalog import open_source
from reshard.tasks.conversion import commit_target
from reshard.tasks.events import emit_completed, emitting_failure
from reshard.tasks.planning import plan_conversion
from reshard.tasks.policies import untouched
from reshard.tasks.progress import RunProgress
from reshard.tasks.storages import RESOLVERS
from reshard.tasks.strategies import find_source_strategy, outline_target


def title_of(request: ConversionRequest) -> str:
    """Name a run by source, target, and ranks if not all."""
    some = f" (ranks {request.ranks})" if request.ranks.strip() else ""
    return f"convert {tail_of(request.source)} -> {tail_of(request.target)}{some}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="convert-checkpoint", flow_run_name=_run_name, persist_result=False)
def convert_checkpoint(request: ConversionRequest) -> ConversionReport:
    """Convert a distributed MindSpore checkpoint to another sharding strategy, verified and resumable.

    Ranks that fail do not stop the others; a rerun does only what is missing.

    Raises:
        InputError: the request, or a file or storage that it names, is wrong.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure.
    """
    return carried_out(title_of(request), lambda progress: convert(request, progress))


def convert(
    request: ConversionRequest,
    progress: RunProgress,
    approved: Callable[[ConversionPlan], State[Any] | None] | None = None,
) -> ConversionReport:
    """Convert in the current run; `approved` returns the state that ends it if the plan is not to be carried out."""
    with emitting_failure(request), resources_of(request, RESOLVERS):
        check_output(request.target)
        is_asset = records_assets()
        asked = request
        request = with_retries(lambda: placed(asked), progress.note)
        with_retries(lambda: check_target(request), progress.note)
        with worker_pool(request) as pool, slots_of(request.concurrency_limit) as slots:
            started = time.monotonic()
            plan = _plan(request)
            if approved and (ended := approved(plan)):
                return ended  # type: ignore[return-value]
            report = _carry_out(request, plan, progress, pool, slots, started)
            if is_asset:
                record_assets(report)
            return report


def _plan(request: ConversionRequest) -> ConversionPlan:
    source_request = SourceRequest.of(request)
    strategy = untouched(find_source_strategy(source_request))
    target = untouched(outline_target(request))
    source = untouched(open_source(source_request, strategy, target))
    return plan_conversion(request, source, target)


def _carry_out(
    request: ConversionRequest,
    plan: ConversionPlan,
    progress: RunProgress,
    pool: PoolRunner | None,
    slots: Slots | None,
    started: float,
) -> ConversionReport:
    with open_session(request, plan, pool.pool if pool else None) as session:
        summary = summarize_plan(plan, session.budget, session.groups, session.prefetch)
        publish_plan(plan, summary, str(session.target.final))
        raise_failures(run_ranks(session, progress, pool, slots), session)
        parts = untouched(read_sources(session, progress, pool, slots))
        report = commit_target(untouched(session), time.monotonic() - started, parts)
    publish_report(report)
    emit_completed(report)
    return report
