"""The check of CRCs in files of known shards, as zip archives have them for each storage."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import Event

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.files.model import StoredCrc
from reshard.core.files.remote_reads import WholeFiles, whole_file_readers
from reshard.core.files.torch_zip import check_crcs
from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url


def with_crcs(
    files: Sequence[ShardFile],
    records: Mapping[int, CatalogRecord],
    unwanted: frozenset[str],
    options: CatalogOptions,
) -> Mapping[int, CatalogRecord]:
    """Return the records of the parts of files, with CRCs of tensors that are checked when these are read.

    Storages that several tensors are in are read here: later, a wrong CRC would be found by one name only. All are if
    the caller reads no tensors.

    Raises:
        CheckpointError: a CRC is wrong.
        StorageError: a file cannot be read.
    """
    later: dict[int, dict[str, StoredCrc]] = {}
    now: list[tuple[ShardFile, dict[str, StoredCrc]]] = []
    rank = 0
    for file in files:
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
