"""Writing target ranks, and committing the target when all are there, as tasks.

A task on a rank gets the plan's URL and identity, not the plan: they are small, and mean the same in any process. It
returns a few bytes: records hold every parameter's digest, and Prefect keeps what tasks return until the run ends.
"""

import threading
from collections.abc import Sequence

from prefect import task

from core import session as steps
from core.budget import Budget
from core.plan import ConversionPlan
from core.plan_file import load_plan
from core.progress import current_progress
from core.report import ConversionReport
from core.target import Workspace
from tasks.policies import RETRIED

_loading = threading.Lock()


@task(name="transform-rank", task_run_name="transform-rank-{rank}", **RETRIED)
def transform_rank(plan_url: str, identity: str, rank: int, budget: Budget, group: Sequence[int], lanes: int) -> int:
    """Writes one target rank's file and its record; returns the file's size in bytes.

    On its turn the first rank of a group has the files of the whole group written. Without a group the rank is made as
    a copy of the file of the rank with the same content, which must be there. `lanes` workers gather for it.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        StorageError: reading or writing failed.
    """
    workspace, plan = open_plan(plan_url, identity)
    record = steps.convert_rank(workspace, plan, rank, budget, current_progress().advance, group=group, lanes=lanes)
    return record.size_bytes


@task(name="commit", task_run_name="commit", **RETRIED)
def commit_target(session: steps.Session, seconds: float) -> ConversionReport:
    """Commits the target if all of its ranks are there, and says what was done.

    Raises:
        StorageError: it could not be; the files are still where they were written.
    """
    return session.finish({}, seconds)


def open_plan(plan_url: str, identity: str) -> tuple[Workspace, ConversionPlan]:
    """The workspace that a plan's file stands in, and the plan; it is loaded once in a process.

    Raises:
        TargetError: the file holds another plan, or none.
        StorageError: it cannot be read.
    """
    with _loading:  # or all workers would load it, each for itself
        return Workspace.of_plan(plan_url, identity), load_plan(plan_url, identity)
