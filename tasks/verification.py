"""Tasks that check written ranks and finished targets."""

import time

from prefect import task
from prefect.client.schemas.objects import State
from prefect.states import Completed

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.dispatch import Unit
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import size_text
from reshard.core.verification import published
from reshard.core.verification.report import VerificationReport
from reshard.tasks.assignment import Assignment, TaskResult, worker_context
from reshard.tasks.policies import RETRIED, ending_with_its_run
from reshard.tasks.storages import RESOLVERS

_MESSAGES = {
    VerifyLevel.NONE: "not verified",
    VerifyLevel.STRUCTURE: "its parameters, dtypes and shapes are right",
    VerifyLevel.CHECKSUM: "every byte is right, {read}",
    VerifyLevel.CONTENT: "every byte is right, {read}; its values are compared at the end",
}


@task(name="verify-rank", task_run_name="verify-rank-{unit.rank}", **RETRIED)
@ending_with_its_run
def verify_rank(assignment: Assignment, unit: Unit) -> State[TaskResult]:
    """Check a written rank against the plan and its record.

    Raises:
        VerificationError: the file differs from what should have been written.
        TargetError: the run is over, or another one has taken over.
        StorageError: the file cannot be read.
    """
    started = time.monotonic()
    with worker_context(assignment) as context:
        found = context.work.check(unit.rank)
        read = f"{size_text(found.read_bytes)} read back in {time.monotonic() - started:.2f} s"
        return Completed(message=f"rank {unit.rank}: {_MESSAGES[found.level].format(read=read)}", data=context.result())


@task(name="verify-target", task_run_name="verify-target", **RETRIED)
def verify_target(request: VerificationRequest) -> VerificationReport:
    """Check a finished conversion against its manifest and records.

    Raises:
        InputError: there is no finished conversion.
        StorageError: the target cannot be read.
    """
    return published.verify_requested(request, current_progress(), RESOLVERS)
