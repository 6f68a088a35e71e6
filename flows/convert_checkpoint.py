"""The flow `convert-checkpoint`: reshards one checkpoint."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.conversion.driver import drive
from reshard.core.conversion.report import ConversionReport
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.invocation import invoked_by
from reshard.flows.executor import TaskExecutor
from reshard.flows.outcome import carried_out, check_output, completed, tail_of
from reshard.flows.runners import worker_pool
from reshard.flows.slots import slots_of
from reshard.tasks.artifacts import publish_report
from reshard.tasks.assets import record_assets, records_assets
from reshard.tasks.events import emit_completed, emitting_failure
from reshard.tasks.labels import label_report, labelled
from reshard.tasks.pages import report_text
from reshard.tasks.progress import RunProgress
from reshard.tasks.storages import RESOLVERS


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
    approve: Callable[[ConversionPlan], None] = lambda _: None,
) -> ConversionReport:
    """Convert in the current run; `approve` raises an error if the plan is not to be carried out."""

    @contextmanager
    def tasks(request: ConversionRequest) -> Iterator[TaskExecutor]:
        with worker_pool(request) as runner, slots_of(request.concurrency_limit) as slots:
            yield TaskExecutor(progress, runner, slots, approve)

    with (
        emitting_failure(request),
        labelled(request),
        resources_of(request, RESOLVERS),
        invoked_by(flow_run.id or ""),
    ):
        check_output(request.target)
        is_asset = records_assets()
        report = drive(request, tasks)
        publish_report(report)
        emit_completed(report)
        label_report(report)
        if is_asset:
            record_assets(report)
        return completed(report, report_text(report))
