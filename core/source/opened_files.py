"""A checkpoint whose files are read one by one, whether its strategy is known or not."""

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.layouts.survey import survey
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.records import Record
from reshard.core.source.opening import Source, find_strategy, open_by_strategy
from reshard.core.source.strategy_beside import UnusedStrategyError
from reshard.core.text.options import spelled


class OpenedFiles(Record):
    """The files of a checkpoint, and the source that a strategy makes of them; None if several ranks have none."""

    catalog: CheckpointCatalog
    source: Source | None

    def file_of(self, rank: int) -> str:
        """The name of a rank's file, below the checkpoint."""
        return self.catalog.records[rank].location.removeprefix(f"{self.catalog.url.rstrip('/')}/")


def open_files(request: SourceRequest) -> OpenedFiles:
    """Catalog all files of a checkpoint; without a strategy those of all ranks up to the last, none of them missing.

    Raises:
        InputError: the checkpoint, or its strategy, cannot be used.
        StorageError: it cannot be read.
    """
    doubt = ""
    try:
        given = find_strategy(request)
    except UnusedStrategyError as error:  # files can be read without it
        given, doubt = None, error.reason
    if given is not None:
        source = open_by_strategy(request, given)
        return OpenedFiles(source.catalog, source)
    found = survey(request.source, request.step)
    last = max(found.ranks, default=0)
    if last == 0:
        source = open_by_strategy(request, None)
        return OpenedFiles(source.catalog, source)
    options = CatalogOptions(
        ranks=range(last + 1),
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        root=request.root,
        check_crc=request.check_crc,
        workers=request.worker_count,
    )
    catalog = catalog_of(found, options)
    if doubt:
        note = spelled(f"the strategy beside the checkpoint is not used automatically: {doubt}")
        catalog = replace(catalog, notes=(*catalog.notes, note))
    return OpenedFiles(catalog, None)
