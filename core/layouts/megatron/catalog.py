"""Builds the catalog of an iteration, and checks what headers do not show: CRCs, replicas, the optimizer's masters."""

from collections.abc import Mapping
from contextlib import closing
from threading import Event

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat, StoredCrc
from reshard.core.files.remote_reads import WholeFiles, whole_file_readers
from reshard.core.files.torch_zip import check_crcs
from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint
from reshard.core.layouts.megatron.iterations import Iteration
from reshard.core.layouts.megatron.masters import check_masters
from reshard.core.layouts.placed_replicas import check_placed_replicas
from reshard.core.layouts.placed_shards import ShardFile, placed_records
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.text.options import option


def megatron_catalog(iteration: Iteration, opened: OpenedCheckpoint, options: CatalogOptions) -> CheckpointCatalog:
    """Catalog the files of an iteration.

    Raises:
        CatalogError: files are missing or damaged; replicas differ; the optimizer cannot be converted.
        CheckpointError: a CRC is wrong.
        StorageError: a transient failure of the storage.
    """
    notes = [*iteration.notes, *opened.notes]
    opened.check_complete()
    if opened.lost:
        if not options.damage.recovers:
            raise CatalogError(
                f"{opened.lost_text}. What they hold is in other files as well: {option('recover', True)} does without "
                "them"
            )
        notes.append(f"{opened.lost_text}; what they hold was in other files as well")
    if opened.state_problem:
        notes.append(f"left out: the optimizer's states, which have no names: {opened.state_problem}")
    unwanted = frozenset(options.damage.excluded(opened.names))
    records = placed_records(opened.files)
    if options.check_crc:
        records = _with_crcs(opened, records, unwanted, options)
    wanted = [name for name in opened.names if name not in unwanted]
    check_placed_replicas(opened.origin, opened.files, records, frozenset(wanted), options)
    if not unwanted.issuperset(opened.states):
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


def _with_crcs(
    opened: OpenedCheckpoint,
    records: Mapping[int, CatalogRecord],
    unwanted: frozenset[str],
    options: CatalogOptions,
) -> Mapping[int, CatalogRecord]:
    """The records, with CRCs of tensors that are checked when these are read; other storages are checked here.

    A storage is read here if several tensors are in it: a wrong CRC is found later by one name only.
    """
    later: dict[int, dict[str, StoredCrc]] = {}
    now: list[tuple[ShardFile, dict[str, StoredCrc]]] = []
    rank = 0
    for file in opened.files:
        storages: dict[StoredCrc, str] = {}
        shared = _shared(file)
        for part in file.parts:
            of_rank = later.setdefault(rank, {})
            for name, shard in part.items():
                crc = shard.stored.crc
                if crc is None or name in unwanted:
                    continue
                if options.crc_later and crc not in shared:
                    of_rank[name] = crc
                else:
                    storages[crc] = name
            rank += 1
        if storages:
            now.append((file, {name: crc for crc, name in storages.items()}))
    _check_now(now, options.workers)
    return {
        rank: replace(record, index=replace(record.index, has_crc=bool(crcs), crcs=crcs))
        for rank, (record, crcs) in enumerate(zip(records.values(), later.values(), strict=True))
    }


def _shared(file: ShardFile) -> frozenset[StoredCrc]:
    """The storages of a file that several tensors are in."""
    first: dict[StoredCrc, str] = {}
    crcs = ((shard.stored.crc, shard.name) for shard in file.shards)
    return frozenset(crc for crc, name in crcs if crc is not None and first.setdefault(crc, name) != name)


def _check_now(files: list[tuple[ShardFile, dict[str, StoredCrc]]], workers: int) -> None:
    if not files:
        return
    progress, whole_files = current_progress(), WholeFiles()
    progress.begin("checking CRCs", sum(crc.extent.length for _, crcs in files for crc in crcs.values()))

    def check(item: tuple[ShardFile, dict[str, StoredCrc]]) -> None:
        shard_file, crcs = item
        with (
            closing(open_source(parse_url(shard_file.location), shard_file.version)) as file,
            whole_files.room_for(file),
        ):
            check_crcs(file, crcs, progress.advance)

    in_threads(check, files, whole_file_readers(parse_url(files[0][0].location), workers), Event())
