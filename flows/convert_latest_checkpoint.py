"""The flow `convert-latest-checkpoint`: the newest step that training has saved, to be run on a schedule."""

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.conversion.latest import LatestReport, run_latest
from reshard.core.conversion.report import ConversionReport
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.progress import Progress, current_progress, reporting_to
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.outcome import carried_out, check_output, completed, tail_of
from reshard.tasks.artifacts import publish_latest
from reshard.tasks.storages import RESOLVERS


def title_of(request: LatestConversionRequest) -> str:
    """Name a run."""
    dry = " (dry run)" if request.dry_run else ""
    return f"convert latest of {tail_of(request.source)} -> {tail_of(request.target)}{dry}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="convert-latest-checkpoint", flow_run_name=_run_name, persist_result=False)
def convert_latest_checkpoint(request: LatestConversionRequest) -> LatestReport:
    """Convert the newest step that training has saved completely, if it is not converted yet.

    The conversion is a run of its own, below this one. The state's message says what was done, or why nothing was.

    Raises:
        InputError: the request or a file that it names is wrong; or no step is complete, and none is being written.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure.
    """
    listener = current_progress()
    return carried_out(title_of(request), lambda progress: _convert_latest(request, progress, listener))


def _convert_latest(request: LatestConversionRequest, progress: Progress, listener: Progress) -> LatestReport:
    def convert_step(conversion: ConversionRequest) -> ConversionReport:
        # progress goes to the conversion's own run: this one would log the same lines, and show the same bar
        with reporting_to(listener):
            return convert_checkpoint(conversion)

    check_output(request.target)
    with resources_of(request, RESOLVERS):
        report = run_latest(request, convert_step)
    for text in (*report.notes, report.message):
        progress.note(text)
    publish_latest(report)
    return completed(report, report.message)
