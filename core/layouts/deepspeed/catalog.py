"""Builds the catalog of a tag, and checks what headers do not show: CRCs, and that masters are those of the model."""

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.deepspeed.checkpoint import OpenedTag
from reshard.core.layouts.deepspeed.masters import check_masters
from reshard.core.layouts.deepspeed.tags import Tag
from reshard.core.layouts.placed_crcs import damage_first, with_crcs
from reshard.core.layouts.placed_shards import placed_records
from reshard.core.layouts.source_layout import CatalogOptions


def deepspeed_catalog(tag: Tag, opened: OpenedTag, options: CatalogOptions) -> CheckpointCatalog:
    """Catalog the files of a tag.

    Raises:
        CatalogError: files are of different saves.
        CheckpointError: a CRC is wrong.
        StorageError: a transient failure of the storage.
    """
    notes = [*tag.notes, *opened.notes]
    if opened.state_problem:
        notes.append(f"left out: the optimizer's states, which have no names: {opened.state_problem}")
    unwanted = frozenset(options.damage.excluded(opened.names))
    records = placed_records(opened.files)
    if options.check_crc:
        records = with_crcs(opened.files, records, unwanted, options)
    with damage_first(opened.files, unwanted, options):
        check_masters(opened, options.workers)
    steps = opened.model.steps
    number = steps if tag.number is None else tag.number
    if steps not in (None, number):
        notes.append(f"{tag.location}: its files say that they are of step {steps}")
    step = None if number is None else str(number)
    return CheckpointCatalog(tag.url, CheckpointFormat.SAFETENSORS, step, records, tuple(notes))
