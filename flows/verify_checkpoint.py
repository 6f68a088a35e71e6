"""The flow `verify-checkpoint`: compares a converted checkpoint with its records."""

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.errors import VerificationError
from reshard.core.request.verification import VerificationRequest
from reshard.core.text.printing import listed_lines, printable
from reshard.core.verification.published import resources_to_verify
from reshard.core.verification.report import VerificationReport
from reshard.flows.outcome import carried_out, completed, tail_of
from reshard.tasks.artifacts import publish_verification
from reshard.tasks.progress import RunProgress
from reshard.tasks.storages import RESOLVERS
from reshard.tasks.verification import verify_target


def title_of(request: VerificationRequest) -> str:
    """Name a run."""
    return f"verify {tail_of(request.target)}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="verify-checkpoint", flow_run_name=_run_name, persist_result=False)
def verify_checkpoint(request: VerificationRequest) -> VerificationReport:
    """Check a converted checkpoint against its manifest; only the checkpoint is needed.

    Raises:
        InputError: there is no finished conversion.
        VerificationError: the checkpoint is not as it was written; the message lists the differences.
        ConversionError: runtime failure.
    """
    return carried_out(title_of(request), lambda progress: _verify(request, progress))


def _verify(request: VerificationRequest, progress: RunProgress) -> VerificationReport:
    with resources_to_verify(request, RESOLVERS):
        report = verify_target(request)
    if report.problems:
        lines = listed_lines(report.problems)
        raise VerificationError("\n".join([f"{printable(report.target)}: is not as it was written:", *lines]))
    for note in report.notes:
        progress.note(note)
    publish_verification(report)
    verdict = f"{printable(report.target)}: {report.ranks} ranks checked ({report.level}), all files intact"
    progress.note(verdict)
    return completed(report, verdict)
