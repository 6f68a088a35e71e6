"""Comparing two checkpoints, as a task."""

from prefect import task

from reshard.core import compare
from reshard.core.comparison_report import ComparisonReport
from reshard.core.comparison_request import ComparisonRequest
from reshard.core.progress import current_progress
from reshard.tasks.policies import RETRIED
from reshard.tasks.storages import RESOLVERS


@task(name="compare-checkpoints", task_run_name="compare-checkpoints", **RETRIED)
def compare_checkpoints(request: ComparisonRequest) -> ComparisonReport:
    """Tells whether two checkpoints are the same model, and where they differ.

    Raises:
        InputError: one of them cannot be read as it was named.
        StorageError: a storage failed.
    """
    return compare.compare_checkpoints(request, current_progress(), RESOLVERS)
