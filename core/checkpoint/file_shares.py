"""Divides the reading of all of a checkpoint's contents among workers: several share a large file that is near."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.content_blocks import Block, ElementRange, read_blocks, worker_ranges
from reshard.core.checkpoint.dense_view import first_file, open_record
from reshard.core.errors import CatalogError
from reshard.core.files.model import TensorEntry
from reshard.core.files.remote_reads import whole_file_readers
from reshard.core.runtime.records import Record
from reshard.core.storage.file_versions import difference_text

_WORKER_BYTES = 32 * 2**20
"""Buffers of one worker at most; half of a remote file's are in flight."""
BLOCK_BYTES = 4 * 2**20
"""Read and looked at in one go: large enough for the overhead of a block not to matter."""
_MIN_SHARE_BYTES = 64 * 2**20
"""The least that one worker reads in one go, where several share a file."""
_MAX_SHARES = 4
"""Shares of a file for each worker: few, yet enough for all workers to end at about the same time."""


class FileShare(Record):
    """The part of a file that a worker reads: share `number` of `count`."""

    record: CatalogRecord
    number: int
    count: int

    def ranges(self, entries: Sequence[TensorEntry]) -> list[ElementRange]:
        """Return the elements of some of the file's entries that are in this share."""
        return worker_ranges(entries, self.number, self.count)

    def __str__(self) -> str:
        return f"{self.record.location}: share {self.number + 1} of {self.count}"


class FileShares(Record):
    """The shares of all files, and how many workers read them at once."""

    shares: tuple[FileShare, ...]
    workers: int


def affordable_workers(workers: int, memory_limit_bytes: int) -> int:
    """Return how many of so many workers have room for their buffers."""
    return max(1, min(workers, memory_limit_bytes // _WORKER_BYTES))


def file_shares(catalog: CheckpointCatalog, workers: int) -> FileShares:
    """Divide the files of a checkpoint among workers."""
    location = first_file(catalog)
    at_once = whole_file_readers(location, workers)
    # a file that is not near is read ahead by one worker
    most = _MAX_SHARES * at_once if location.store.is_near else 1
    shares = []
    for record in catalog.records.values():
        count = max(1, min(most, record.size_bytes // _MIN_SHARE_BYTES))
        shares += [FileShare(record, number, count) for number in range(count)]
    return FileShares(tuple(shares), at_once)


def read_file_blocks(record: CatalogRecord, ranges: Sequence[ElementRange]) -> Iterator[Block]:
    """Yield the contents of ranges of a rank's file; a block's array is valid until the next one is requested.

    Raises:
        CatalogError: the file changed since its headers were read.
        CheckpointError: it is truncated, or cannot be decrypted.
        StorageError: it cannot be read.
    """
    with closing(open_record(record)) as file:
        if file.version != record.version:
            raise CatalogError(
                f"rank_{record.rank}: {record.location} changed since its headers were read "
                f"({difference_text(record.version, file.version)}). Retry when nothing writes to the checkpoint"
            )
        yield from read_blocks(file, record, ranges, np.empty(BLOCK_BYTES, np.uint8))
