"""The source's catalog, as a task."""

from prefect import task

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.request.conversion import ConversionRequest
from reshard.core.source import opening
from reshard.core.strategy.model import Strategy
from reshard.tasks.policies import RETRIED


@task(name="catalog", task_run_name="catalog", **RETRIED)
def catalog_source(request: ConversionRequest, source: Strategy | None, target: Strategy | None) -> CheckpointCatalog:
    """Which file is which source rank's, and what is in it.

    Raises:
        CatalogError, CheckpointError: the files do not make one checkpoint of the strategy's ranks.
        StorageError: they cannot be read.
    """
    return opening.catalog_source(request, source, target)
