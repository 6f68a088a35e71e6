"""Checking written ranks, as a task."""

import time

from prefect import task
from prefect.client.schemas.objects import State
from prefect.states import Completed

from reshard.core.conversion import session as steps
from reshard.core.request.conversion import VerifyLevel
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import size_text
from reshard.core.verification import files as verify
from reshard.core.verification.report import VerificationReport
from reshard.tasks.assignment import Assignment, Deeds, taken_up
from reshard.tasks.policies import RETRIED, ending_with_its_run

_TOLD = {
    VerifyLevel.NONE: "not verified",
    VerifyLevel.STRUCTURE: "its parameters, dtypes and shapes are right",
    VerifyLevel.CHECKSUM: "every byte is right, {read}",
    VerifyLevel.CONTENT: "every byte is right, {read}; its values are compared at the end",
}


@task(name="verify-rank", task_run_name="verify-rank-{rank}", **RETRIED)
@ending_with_its_run
def verify_rank(assignment: Assignment, rank: int) -> State[Deeds]:
    """Checks a written rank against the plan and its record.

    Raises:
        VerificationError: the file is not what it was to be.
        TargetError: the run is over, or another one has taken over.
        StorageError: it could not be read.
    """
    started = time.monotonic()
    with taken_up(assignment) as work:
        found = steps.check_rank(work.workspace, work.plan, rank, assignment.level, work.advance)
        read = f"{size_text(found.read_bytes)} read back in {time.monotonic() - started:.2f} s"
        return Completed(message=f"rank {rank}: {_TOLD[found.level].format(read=read)}", data=work.deeds())


@task(name="verify-target", task_run_name="verify-target", **RETRIED)
def verify_target(request: VerificationRequest) -> VerificationReport:
    """Checks a finished conversion against its manifest and records.

    Raises:
        InputError: there is no finished conversion.
        StorageError: it cannot be read.
    """
    return verify.verify_target(request.target, request.level, current_progress())
