"""Checking written ranks, as a task."""

from prefect import task

from core import session as steps
from core.progress import current_progress
from core.request import VerifyLevel
from tasks.conversion import open_plan
from tasks.policies import RETRIED


@task(name="verify-rank", task_run_name="verify-rank-{rank}", **RETRIED)
def verify_rank(plan_url: str, identity: str, rank: int, level: VerifyLevel) -> int:
    """Checks a written rank against the plan and its record; returns how many bytes were read back.

    Raises:
        VerificationError: the file is not what it was to be.
        StorageError: it could not be read.
    """
    workspace, plan = open_plan(plan_url, identity)
    return steps.check_rank(workspace, plan, rank, level, current_progress().advance).read_bytes
