"""Builds the catalog of an iteration, and checks what headers do not show: CRCs, replicas, the optimizer's masters."""

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.lost_files import notes_of_lost
from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint
from reshard.core.layouts.megatron.iterations import Iteration
from reshard.core.layouts.megatron.masters import check_masters
from reshard.core.layouts.placed_crcs import damage_first, with_crcs
from reshard.core.layouts.placed_replicas import check_placed_replicas
from reshard.core.layouts.placed_shards import placed_records
from reshard.core.layouts.source_layout import CatalogOptions


def megatron_catalog(iteration: Iteration, opened: OpenedCheckpoint, options: CatalogOptions) -> CheckpointCatalog:
    """Catalog the files of an iteration.

    Raises:
        CatalogError: files are missing or damaged; replicas differ; the optimizer cannot be converted.
        CheckpointError: a CRC is wrong.
        StorageError: a transient failure of the storage.
    """
    notes = [*iteration.notes, *opened.notes]
    opened.check_complete()
    notes += notes_of_lost(opened.origin, opened.lost, options)
    if opened.state_problem:
        notes.append(f"left out: the optimizer's states, which have no names: {opened.state_problem}")
    unwanted = frozenset(options.damage.excluded(opened.names))
    records = placed_records(opened.files)
    if options.check_crc:
        records = with_crcs(opened.files, records, unwanted, options)
    wanted = [name for name in opened.names if name not in unwanted]
    with damage_first(opened.files, unwanted, options):
        check_placed_replicas(opened.origin, opened.files, records, frozenset(wanted), options)
    if not unwanted.issuperset(opened.states):
        with damage_first(opened.files, unwanted, options):
            check_masters(opened, options.workers)
    number = opened.number if iteration.number is None else iteration.number
    if number and opened.number not in (None, number):
        notes.append(f"{iteration.location}: its files say that they are of iteration {opened.number}")
    step = None if number is None else str(number)
    return CheckpointCatalog(
        iteration.url,
        CheckpointFormat.SAFETENSORS,
        step,
        records,
        tuple(notes),
    )
