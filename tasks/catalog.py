"""A task that opens the source."""

from prefect import task

from reshard.core.request.source import SourceRequest
from reshard.core.source.opening import GivenStrategy, Source, TargetOutline, open_by_strategy
from reshard.tasks.policies import RETRIED


@task(name="catalog", task_run_name="catalog", **RETRIED)
def open_source(request: SourceRequest, strategy: GivenStrategy, target: TargetOutline) -> Source:
    """Catalog the files of the source's ranks and their parameters.

    Raises:
        CatalogError, CheckpointError: the files do not make one checkpoint of the strategy's ranks.
        StorageError: the files cannot be read.
    """
    return open_by_strategy(request, strategy, target)
