"""The flow `convert-checkpoint`: a distributed checkpoint from one sharding strategy to another."""

import time

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Failed

from core.errors import ReshardError
from core.garbage import rare_collections
from core.progress import current_progress, reporting_to
from core.report import ConversionReport, summarize_plan
from core.request import ConversionRequest
from core.retry import counting_retries, stoppable
from core.session import open_session, raise_failures
from core.storage.named_options import storages_of
from flows.ranks import run_ranks
from tasks.artifacts import publish_failure, publish_plan, publish_report
from tasks.catalog import catalog_source
from tasks.conversion import commit_target
from tasks.planning import plan_conversion
from tasks.policies import untouched
from tasks.progress import RunProgress
from tasks.storages import RESOLVERS
from tasks.strategies import merge_strategy


def title_of(request: ConversionRequest) -> str:
    """What a run is called: from where, to where, and which ranks if not all."""
    some = f" (ranks {request.ranks})" if request.ranks.strip() else ""
    return f"convert {_tail(request.source)} -> {_tail(request.target)}{some}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="convert-checkpoint", flow_run_name=_run_name, persist_result=False)
def convert_checkpoint(request: ConversionRequest) -> ConversionReport:
    """Converts a distributed MindSpore checkpoint to another sharding strategy, verified and resumable.

    Ranks that fail do not stop the others; a rerun does only what is missing.

    Raises:
        InputError: the request or what it names is wrong.
        VerificationError: a written file is not what it was to be.
        ConversionError: it failed all the same.
    """
    with stoppable() as stop, counting_retries(), rare_collections():
        progress = RunProgress(current_progress(), stop)
        try:
            with reporting_to(progress), storages_of(request, RESOLVERS):
                return _convert(request, progress)
        except ReshardError as error:
            publish_failure(title_of(request), error)
            # the run's message is the error's, as it is; whoever called the flow gets the error raised
            return Failed(message=str(error), data=error)  # type: ignore[return-value]


def _convert(request: ConversionRequest, progress: RunProgress) -> ConversionReport:
    started = time.monotonic()
    source = untouched(merge_strategy(request.source_strategy, "source"))
    target = untouched(merge_strategy(request.target_strategy, "target"))
    catalog = untouched(catalog_source(request, source, target))
    plan = plan_conversion(request, catalog, source, target)
    with open_session(request, plan) as session:
        publish_plan(summarize_plan(plan, session.budget, session.groups, session.lanes))
        raise_failures(run_ranks(session, progress), session)
        report = commit_target(untouched(session), time.monotonic() - started)
    publish_report(report)
    return report


def _tail(url: str) -> str:
    """The last two names of a URL; never a password, which is refused, but only after the run has its name."""
    return "/".join(url.rpartition("@")[2].rstrip("/").split("/")[-2:])
