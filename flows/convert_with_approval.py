"""The flow `convert-checkpoint` with a question in between: plans, waits for approval, converts what was approved."""

from functools import partial

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.conversion.report import ConversionReport
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.flows.approval import Refused, check_approved, check_deployed
from reshard.flows.convert_checkpoint import convert, title_of
from reshard.flows.outcome import carried_out
from reshard.tasks.progress import RunProgress


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="convert-checkpoint", flow_run_name=_run_name, persist_result=False)
def convert_with_approval(request: ApprovedConversionRequest) -> ConversionReport:
    """Convert a checkpoint when somebody has seen the plan and agrees.

    The run is suspended until then. If the plan is refused it ends as Cancelled, if nobody decides in time as Failed.

    Raises:
        InputError: the request, or a file or storage that it names, is wrong; or the run has no deployment.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure.
    """
    return carried_out(title_of(request), lambda progress: _convert(request, progress))


def _convert(request: ApprovedConversionRequest, progress: RunProgress) -> ConversionReport:
    check_deployed()
    try:
        return convert(request.conversion(), progress, partial(check_approved, request))
    except Refused as refused:
        return refused.state  # type: ignore[return-value]
