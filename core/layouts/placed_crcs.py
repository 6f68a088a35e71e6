"""The check of CRCs in files of known shards, as zip archives have them for each storage."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Event

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import CatalogError
from reshard.core.files.model import StoredCrc
from reshard.core.files.remote_reads import WholeFiles, whole_file_readers
from reshard.core.files.torch_zip import check_crcs
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile
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

    All are read here if the caller reads no tensors.

    Raises:
        CheckpointError: a CRC is wrong.
        StorageError: a file cannot be read.
    """
    if not options.crc_later:
        check_placed_crcs(files, unwanted, options.workers)
        return records
    parts = [_wanted_crcs(part, unwanted) for file in files for part in file.parts]
    return {
        rank: replace(record, index=replace(record.index, has_crc=bool(crcs), crcs=crcs))
        for (rank, record), crcs in zip(records.items(), parts, strict=True)
    }


@contextmanager
def damage_first(files: Sequence[ShardFile], unwanted: frozenset[str], options: CatalogOptions) -> Iterator[None]:
    """Compare values inside the block: if they differ because some are damaged, it ends in that error instead."""
    try:
        yield
    except CatalogError:
        if options.check_crc and options.crc_later:
            check_placed_crcs(files, unwanted, options.workers)
        raise


def check_placed_crcs(files: Sequence[ShardFile], unwanted: frozenset[str], workers: int) -> None:
    """Read the storages of wanted tensors, and check their CRCs.

    Raises:
        CheckpointError: a CRC is wrong.
        StorageError: a file cannot be read.
    """
    progress, whole_files = current_progress(), WholeFiles()
    by_file = [(file, crcs) for file in files if (crcs := _storages(file, unwanted))]
    if not by_file:
        return
    progress.begin("checking CRCs", sum(crc.extent.length for _, crcs in by_file for crc in crcs.values()))

    def check(item: tuple[ShardFile, Mapping[str, StoredCrc]]) -> None:
        shard_file, crcs = item
        with (
            closing(open_source(parse_url(shard_file.location), shard_file.version)) as file,
            whole_files.room_for(file),
        ):
            check_crcs(file, crcs, progress.advance)

    in_threads(check, by_file, whole_file_readers(parse_url(by_file[0][0].location), workers), Event())


def _storages(file: ShardFile, unwanted: frozenset[str]) -> dict[str, StoredCrc]:
    """The CRC of each storage in a file, by the name of one tensor in it."""
    names = {crc: name for part in file.parts for name, crc in _wanted_crcs(part, unwanted).items()}
    return {name: crc for crc, name in names.items()}


def _wanted_crcs(part: Mapping[str, PlacedShard], unwanted: frozenset[str]) -> dict[str, StoredCrc]:
    stored = ((name, shard.stored.crc) for name, shard in part.items() if name not in unwanted)
    return {name: crc for name, crc in stored if crc is not None}
