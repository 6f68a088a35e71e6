"""Builds the catalog of a model's ranks, and checks what headers do not show: CRCs and replicas."""

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.fsdp.checkpoint import OpenedCheckpoint
from reshard.core.layouts.fsdp.places import SavedModel
from reshard.core.layouts.lost_files import notes_of_lost
from reshard.core.layouts.placed_crcs import damage_first, with_crcs
from reshard.core.layouts.placed_replicas import check_placed_replicas
from reshard.core.layouts.placed_shards import placed_records
from reshard.core.layouts.source_layout import CatalogOptions


def fsdp_catalog(saved: SavedModel, opened: OpenedCheckpoint, options: CatalogOptions) -> CheckpointCatalog:
    """Catalog the ranks' files of a model.

    Raises:
        CatalogError: files are missing or damaged, or replicas differ.
        CheckpointError: a CRC is wrong.
        StorageError: a transient failure of the storage.
    """
    notes = [*saved.notes, *opened.notes]
    _ = opened.strategy  # a refusal, unless the usable files hold the whole model
    unwanted = frozenset(options.damage.excluded(opened.names))
    has_states = not unwanted.issuperset(opened.optimizer.names)
    lost = {**opened.lost, **(opened.optimizer.lost if has_states else {})}
    notes += notes_of_lost(opened.origin, lost, options)
    if opened.optimizer.problem:
        notes.append(f"left out: the optimizer's states, which are not known by names: {opened.optimizer.problem}")
    records = placed_records(opened.files)
    if options.check_crc:
        records = with_crcs(opened.files, records, unwanted, options)
    wanted = frozenset(name for name in opened.names if name not in unwanted)
    with damage_first(opened.files, unwanted, options):
        check_placed_replicas(opened.origin, opened.files, records, wanted, options)
    return CheckpointCatalog(
        saved.url,
        CheckpointFormat.SAFETENSORS,
        None if saved.number is None else str(saved.number),
        records,
        tuple(notes),
        tied=opened.tied,
    )
