"""Tasks that read and merge strategies."""

from prefect import task

from reshard.core.conversion import planning
from reshard.core.conversion.merge_strategy import MergeReport, MergeRequest
from reshard.core.conversion.merge_strategy import merge_files as merge
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.source import SourceRequest
from reshard.core.source.opening import GivenStrategy, TargetOutline, find_strategy
from reshard.tasks.policies import RETRIED


@task(name="merge-strategy", task_run_name="merge-strategy-source", **RETRIED)
def find_source_strategy(request: SourceRequest) -> GivenStrategy:
    """The source's strategy, merged if its URL is a directory; without a URL, its own, or the only one beside it.

    Raises:
        StrategyError: the strategy cannot be used.
        StorageError: a transient failure.
    """
    return find_strategy(request)


@task(name="merge-strategy", task_run_name="merge-strategy-target", **RETRIED)
def outline_target(request: ConversionRequest) -> TargetOutline:
    """The target's strategy, merged if its URL is a directory, and the changes on the way there.

    Raises:
        InputError: the strategy or the file of changes cannot be used.
        StorageError: a transient failure.
    """
    return planning.outline_target(request)


@task(name="merge-files", task_run_name="merge-files", **RETRIED)
def merge_files(request: MergeRequest) -> MergeReport:
    """Merge a job's strategy files into one.

    Raises:
        InputError: the files cannot be merged, or the target exists already.
        StorageError: a transient failure.
    """
    return merge(request.source, request.target, request.overwrite)
