"""A task that compares two checkpoints."""

from prefect import task

from reshard.core.request.comparison import ComparisonRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.verification import compare
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.tasks.policies import RETRIED
from reshard.tasks.storages import RESOLVERS


@task(name="compare-checkpoints", task_run_name="compare-checkpoints", **RETRIED)
def compare_checkpoints(request: ComparisonRequest) -> ComparisonReport:
    """Compare two checkpoints and list their differences.

    Raises:
        InputError: a checkpoint cannot be read as named.
        StorageError: a storage failed.
    """
    return compare.compare_checkpoints(request, current_progress(), RESOLVERS)
