"""Contents of a checkpoint file's entries, block by block, each block a box of its shard."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import tee

import numpy as np

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.checkpoint.model import TensorEntry
from reshard.core.checkpoint.remote_index.templates import Head, expected_heads, header_mismatch
from reshard.core.checkpoint.remote_reads import read_ahead
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.slices import Extent, TensorSlice, bounding_extent, contiguous_boxes

Block = tuple[TensorEntry, TensorSlice, np.ndarray]
"""An entry, a box of its shard, and the box's elements as unsigned integers; an array of the box's shape."""


@dataclass(frozen=True)
class ElementRange:
    """Elements `start` to `stop` of an entry's contents, in their order."""

    entry: TensorEntry
    start: int
    stop: int

    @classmethod
    def whole(cls, entry: TensorEntry) -> "ElementRange":
        """All of an entry."""
        return cls(entry, 0, math.prod(entry.shape))

    @property
    def size_bytes(self) -> int:
        """Bytes of these elements."""
        return (self.stop - self.start) * self.entry.dtype.itemsize


def worker_ranges(entries: Sequence[TensorEntry], number: int, count: int) -> list[ElementRange]:
    """What one of `count` workers reads of entries, for all to have about as many bytes; texts stay whole."""
    total_bytes = sum(entry.size_bytes for entry in entries)
    low, high = (total_bytes * edge // count for edge in (number, number + 1))
    ranges = []
    begin = 0
    for entry in entries:
        end = begin + entry.size_bytes
        if entry.text is not None or not entry.size_bytes:
            if low <= begin < high or (begin == high and number + 1 == count):
                ranges.append(ElementRange.whole(entry))
        elif begin < high and low < end:
            start, stop = ((edge - begin) // entry.dtype.itemsize for edge in (max(low, begin), min(high, end)))
            ranges.append(ElementRange(entry, start, stop))
        begin = end
    return ranges


def read_blocks(
    file: SourceFile, record: CatalogRecord, ranges: Sequence[ElementRange], buffer: np.ndarray
) -> Iterator[Block]:
    """The contents of ranges, in boxes of at most as many bytes as `buffer` has.

    They are read into it, or of a remote file ahead; a block's array is good until the next one is asked for. A text is
    the bytes of its UTF-32 code units.

    Raises:
        CatalogError: the headers of the record were assumed, and before contents stand others.
        CheckpointError: the file ends before the contents do.
        StorageError: it cannot be read.
    """
    blocks = ((range_.entry, box) for range_ in ranges for box in _boxes(range_, len(buffer)))
    if file.location.is_local:
        yield from _local(file, blocks, buffer)
    else:
        yield from _remote(file, record, blocks)


def text_bytes(text: str) -> np.ndarray:
    """What stands for a text: its UTF-32 code units, an empty text's being one NUL; as many bytes as its entry says."""
    return np.frombuffer((text or "\0").encode("utf-32-le", "surrogatepass"), np.uint8)


def _boxes(range_: ElementRange, most_bytes: int) -> Iterator[TensorSlice]:
    if range_.entry.text is not None:
        yield TensorSlice.whole(range_.entry.shape)
    else:
        most = most_bytes // range_.entry.dtype.itemsize
        yield from contiguous_boxes(range_.entry.shape, range_.start, range_.stop, most)


def _local(file: SourceFile, blocks: Iterator[tuple[TensorEntry, TensorSlice]], buffer: np.ndarray) -> Iterator[Block]:
    for entry, box in blocks:
        block = buffer[: box.size * entry.dtype.itemsize]
        position = 0
        for extent in _extents(entry, box):
            file.read_into(extent.offset, block[position : position + extent.length].data)
            position += extent.length
        yield entry, box, _elements(entry, box, block)


def _remote(
    file: SourceFile, record: CatalogRecord, blocks: Iterator[tuple[TensorEntry, TensorSlice]]
) -> Iterator[Block]:
    """The blocks of a remote file, several of them under way: asking is ahead of what is given, on the same walk."""
    ahead, here = tee(blocks)
    heads = _Heads(record)
    ranges = (
        range_
        for entry, box in ahead
        for extent in _extents(entry, box)
        for range_ in (*heads.before(entry, extent), (extent.offset, extent.length))
    )
    answers = (data for _, data in read_ahead(file, ranges))
    for entry, box in here:
        parts = []
        for extent in _extents(entry, box):
            heads.check(entry, extent, answers)
            parts.append(next(answers))
        yield entry, box, _elements(entry, box, np.frombuffer(b"".join(parts), np.uint8))


class _Heads:
    """What has to stand before contents in a file whose headers were assumed to be as another's."""

    def __init__(self, record: CatalogRecord) -> None:
        self._record = record

    def before(self, entry: TensorEntry, extent: Extent) -> list[tuple[int, int]]:
        """The range of what stands before an extent, if that is where one of the entry begins and is to be checked."""
        head = self._head(entry, extent)
        return [] if head is None else [(head[0], len(head[1]))]

    def check(self, entry: TensorEntry, extent: Extent, answers: Iterator[bytes]) -> None:
        """Compares the answer to that range.

        Raises:
            CatalogError: something else stands there.
        """
        head = self._head(entry, extent)
        if head is not None and next(answers) != head[1]:
            raise header_mismatch(self._record.rank, self._record.location, entry.name, head[0])

    def _head(self, entry: TensorEntry, extent: Extent) -> Head | None:
        if not self._record.assumed:
            return None
        return next((head for head in expected_heads(entry) if head[0] + len(head[1]) == extent.offset), None)


def _extents(entry: TensorEntry, box: TensorSlice) -> tuple[Extent, ...]:
    """Where a box of an entry's shard, which is contiguous, is in its file; nowhere if it is a text's, or empty."""
    if not entry.extents or not box.size:
        return ()
    run = bounding_extent(box, entry.shape, entry.dtype.itemsize)
    return entry.extents_of(run.offset, run.length)


def _elements(entry: TensorEntry, box: TensorSlice, block: np.ndarray) -> np.ndarray:
    if entry.text is not None:
        return text_bytes(entry.text)
    return block.view(f"<u{entry.dtype.itemsize}").reshape(box.shape)
