"""Strategies, as a task."""

from prefect import task

from reshard.core.conversion.merge_strategy import MergeReport, MergeRequest
from reshard.core.conversion.merge_strategy import merge_files as merge
from reshard.core.source.opening import load_strategy
from reshard.core.strategy.model import Strategy
from reshard.tasks.policies import RETRIED


@task(name="merge-strategy", task_run_name="merge-strategy-{side}", **RETRIED)
def merge_strategy(url: str, side: str, checkpoint: str = "") -> Strategy | None:
    """The strategy of one side, "source" or "target", merged if the URL is a directory.

    For an empty URL, the strategy in the records of `checkpoint`, if reshard wrote it; else None.

    Raises:
        StrategyError: the strategy cannot be used.
        StorageError: the storage failed in a way that may go away.
    """
    return load_strategy(url, checkpoint)


@task(name="merge-files", task_run_name="merge-files", **RETRIED)
def merge_files(request: MergeRequest) -> MergeReport:
    """Merges a job's strategy files into one.

    Raises:
        InputError: they cannot be merged, or the file that is to be written is there already.
        StorageError: the storage failed in a way that may go away.
    """
    return merge(request.source, request.target, request.overwrite)
