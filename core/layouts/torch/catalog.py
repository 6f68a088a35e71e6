"""Builds the catalog of a checkpoint, after its index was compared with its files, and their CRCs with their bytes."""

from collections.abc import Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.indexed_tensors import WeightIndex, check_index
from reshard.core.layouts.placed_crcs import with_crcs
from reshard.core.layouts.placed_shards import placed_records
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.layouts.torch.checkpoint import open_files
from reshard.core.storage.urls import Location


def torch_catalog(
    url: str, locations: Sequence[Location], index: WeightIndex | None, options: CatalogOptions
) -> CheckpointCatalog:
    """Catalog files of whole tensors.

    Raises:
        CatalogError: they contradict their index, or each other; the state dict was not chosen; several are unusable.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    if not locations:
        check_index(url, index, {})
        raise CatalogError(f"{url}: its index names no file")
    opened = open_files(url, locations, options.root, options.workers)
    files = [each.file for each in opened]
    records = placed_records(files)
    notes = (*check_index(url, index, records), *(note for each in opened for note in each.notes))
    if options.check_crc:
        names = [shard.name for file in files for shard in file.shards]
        records = with_crcs(files, records, frozenset(options.damage.excluded(names)), options)
    return CheckpointCatalog(url, CheckpointFormat.SAFETENSORS, None, records, notes, has_whole_tensors=True)
