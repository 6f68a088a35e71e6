"""The comparison of replicas in files of known shards: by their CRCs if they have some, else by reading them.

Training keeps replicas equal, and how tensors are cut is often known by their names only: a tensor that is cut,
although it is not by its name, has "replicas" that differ.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import Event

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.dense_view import open_record
from reshard.core.errors import CatalogError, raise_problems
from reshard.core.files.digests import content_digests
from reshard.core.files.remote_reads import whole_file_readers
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.records import Record
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.slices import TensorSlice

_BLOCK_BYTES = 4 << 20
_MAX_FILES = 4


class _Replica(Record):
    rank: int
    path: str
    shard: PlacedShard


def check_placed_replicas(
    origin: str,
    files: Sequence[ShardFile],
    records: Mapping[int, CatalogRecord],
    wanted: frozenset[str],
    options: CatalogOptions,
) -> None:
    """Compare the replicas of the `wanted` parameters; `records` are those of the parts of files.

    Those without CRCs are not read if CRCs are not to be checked, either.

    Raises:
        CatalogError: some differ; names all.
        StorageError: a file cannot be read.
    """
    groups = _groups(files, wanted)
    read = [group for group in groups if not _have_crcs(group)] if options.check_crc else []
    digests = _digests(read, records, options.workers)
    problems = []
    for group in groups:
        contents: dict[object, list[str]] = {}
        for each in group:
            stored = each.shard.stored
            own_crc = stored.crc.crc if stored.crc is not None and _have_crcs(group) else None
            content = digests.get((each.rank, each.shard.name), own_crc)
            contents.setdefault((stored.dtype.name, content), []).append(each.path)
        if len(contents) > 1:
            among = ", another in ".join(listed(paths, _MAX_FILES) for paths in contents.values())
            problems.append(f"parameter {group[0].shard.name!r}, {group[0].shard.box}: one content in {among}")
    raise_problems(CatalogError, f"{origin}: what several files hold of the model is not the same in all", problems)


def _groups(files: Sequence[ShardFile], wanted: frozenset[str]) -> list[list[_Replica]]:
    """The replicas of each box that has several."""
    groups: dict[tuple[str, TensorSlice], list[_Replica]] = {}
    rank = 0
    for file in files:
        for part in file.parts:
            for name, shard in part.items():
                if name in wanted:
                    groups.setdefault((name, shard.box), []).append(_Replica(rank, file.path, shard))
            rank += 1
    return [group for group in groups.values() if len(group) > 1]


def _have_crcs(group: Sequence[_Replica]) -> bool:
    """True if each has a CRC of its own bytes, all of the same length."""
    return all(has_own_crc(each.shard.stored) for each in group)


def has_own_crc(stored: StoredTensor) -> bool:
    """True for a tensor that is the whole of a storage with a CRC, in C order."""
    return stored.crc is not None and stored.extent == stored.crc.extent


def _digests(
    groups: Sequence[Sequence[_Replica]], records: Mapping[int, CatalogRecord], workers: int
) -> dict[tuple[int, str], str]:
    names: dict[int, set[str]] = {}
    for group in groups:
        for each in group:
            names.setdefault(each.rank, set()).add(each.shard.name)
    if not names:
        return {}

    def read(rank: int) -> list[tuple[tuple[int, str], str]]:
        record = records[rank]
        entries = [entry for entry in record.index.entries.values() if entry.name in names[rank]]
        with closing(open_record(record)) as file:
            digests = content_digests(file, entries, _BLOCK_BYTES)
            return [((rank, entry.name), digest) for entry, digest in zip(entries, digests, strict=True)]

    first = parse_url(records[next(iter(names))].location)
    found = in_threads(read, sorted(names), whole_file_readers(first, workers), Event())
    return dict(pair for of_rank in found for pair in of_rank)
