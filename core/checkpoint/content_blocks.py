"""Reads the contents of a checkpoint file's entries block by block, each block a box of its shard."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import tee

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.files.ckpt import Head
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.model import TensorEntry
from reshard.core.files.remote_index.templates import header_mismatch
from reshard.core.files.remote_reads import read_ahead
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.slices import Extent, TensorSlice, bounding_extent, contiguous_boxes

_SMALL_BYTES = 32 * 2**10
"""Small blocks of a local file are read together with their neighbors: a read costs as much as to copy them."""
_GAP_BYTES = 4 * 2**10
"""Between neighbors are headers, which are read with them."""

Block = tuple[TensorEntry, TensorSlice, np.ndarray]
"""An entry, a box of its shard, and the box's elements as unsigned integers in an array of the box's shape."""


class ElementRange(Record):
    """Elements `start` to `stop` of an entry's contents."""

    entry: TensorEntry
    start: int
    stop: int

    @classmethod
    def whole(cls, entry: TensorEntry) -> "ElementRange":
        """Return all elements of an entry."""
        return cls(entry, 0, math.prod(entry.shape))

    @property
    def is_whole(self) -> bool:
        """True if these are all elements of the entry."""
        return self.start == 0 and self.stop == math.prod(self.entry.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of these elements."""
        return (self.stop - self.start) * self.entry.dtype.itemsize


def worker_ranges(entries: Sequence[TensorEntry], number: int, count: int) -> list[ElementRange]:
    """Return the ranges that one of `count` workers reads, about as many bytes for each; texts stay whole."""
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
    """Yield the contents of ranges, in boxes of at most as many bytes as `buffer` has.

    Reads into the buffer, or ahead in a file that is not near; a block's array is valid until the next one is
    requested. A text is the bytes of its UTF-32 code units.

    Raises:
        CatalogError: the headers of the record were assumed, and the bytes before contents differ from them.
        CheckpointError: the file is truncated.
        StorageError: the file cannot be read.
    """
    blocks = ((range_.entry, box) for range_ in ranges for box in _boxes(range_, len(buffer)))
    if file.location.store.is_near:
        yield from _near(file, blocks, buffer)
    else:
        yield from _remote(file, record, blocks)


def text_bytes(text: str) -> np.ndarray:
    """Return a text's UTF-32 code units, a NUL for an empty one; as many bytes as its entry says."""
    return np.frombuffer((text or "\0").encode("utf-32-le", "surrogatepass"), np.uint8)


def _boxes(range_: ElementRange, most_bytes: int) -> Iterator[TensorSlice]:
    if range_.entry.text is not None or (range_.is_whole and 0 < range_.size_bytes <= most_bytes):
        yield TensorSlice.whole(range_.entry.shape)
    else:
        most = most_bytes // range_.entry.dtype.itemsize
        yield from contiguous_boxes(range_.entry.shape, range_.start, range_.stop, most)


class _LocalBlock(Record):
    entry: TensorEntry
    box: TensorSlice
    extents: tuple[Extent, ...]


def _near(file: SourceFile, blocks: Iterator[tuple[TensorEntry, TensorSlice]], buffer: np.ndarray) -> Iterator[Block]:
    found = (_LocalBlock(entry, box, _extents(entry, box)) for entry, box in blocks)
    for neighbors in _neighbors(found, len(buffer)):
        if len(neighbors) == 1:
            [only] = neighbors
            block = buffer[: only.box.size * only.entry.dtype.itemsize]
            position = 0
            for extent in only.extents:
                file.read_into(extent.offset, block[position : position + extent.length].data)
                position += extent.length
            yield only.entry, only.box, _elements(only.entry, only.box, block)
            continue
        start, stop = neighbors[0].extents[0].offset, _stop(neighbors[-1])
        file.read_into(start, buffer[: stop - start].data)
        for each in neighbors:
            first = each.extents[0].offset - start
            # a copy is aligned as elements have to be
            block = buffer[first : first + each.extents[0].length].copy()
            yield each.entry, each.box, _elements(each.entry, each.box, block)


def _neighbors(blocks: Iterable[_LocalBlock], most_bytes: int) -> Iterator[list[_LocalBlock]]:
    """Group small blocks that lie close to one another in the file, in order, within `most_bytes`."""
    group: list[_LocalBlock] = []
    for block in blocks:
        if group and not (
            _is_small(block)
            and 0 <= block.extents[0].offset - _stop(group[-1]) <= _GAP_BYTES
            and _stop(block) - group[0].extents[0].offset <= most_bytes
        ):
            yield group
            group = []
        group.append(block)
        if not _is_small(block):
            yield group
            group = []
    if group:
        yield group


def _is_small(block: _LocalBlock) -> bool:
    return len(block.extents) == 1 and block.extents[0].length <= _SMALL_BYTES


def _stop(block: _LocalBlock) -> int:
    [extent] = block.extents
    return extent.offset + extent.length


def _remote(
    file: SourceFile, record: CatalogRecord, blocks: Iterator[tuple[TensorEntry, TensorSlice]]
) -> Iterator[Block]:
    """Yield the blocks of a remote file, several requests in flight: one walk for requests, another for blocks."""
    ahead, here = tee(blocks)
    ranges = (
        range_
        for entry, box in ahead
        for extent in _extents(entry, box)
        for range_ in (
            *((head.offset, len(head.data)) for head in _head(record, entry, extent)),
            (extent.offset, extent.length),
        )
    )
    answers = (data for _, data in read_ahead(file, ranges))
    for entry, box in here:
        parts = []
        for extent in _extents(entry, box):
            for head in _head(record, entry, extent):
                if next(answers) != head.data:
                    raise header_mismatch(record.rank, record.location, entry.name, head.offset)
            parts.append(next(answers))
        yield entry, box, _elements(entry, box, np.frombuffer(b"".join(parts), np.uint8))


def _head(record: CatalogRecord, entry: TensorEntry, extent: Extent) -> list[Head]:
    """The head to check before an extent, if the file's headers were assumed to equal another's."""
    heads = expected_heads(entry) if record.assumed else ()
    return [head for head in heads if head.offset + len(head.data) == extent.offset]


def _extents(entry: TensorEntry, box: TensorSlice) -> tuple[Extent, ...]:
    """Extents of a box, which is contiguous, in its file; none for a text or an empty box."""
    if not entry.extents or not box.size:
        return ()
    if box.shape == entry.shape:
        return entry.extents
    run = bounding_extent(box, entry.shape, entry.dtype.itemsize)
    return entry.extents_of(run.offset, run.length)


def _elements(entry: TensorEntry, box: TensorSlice, block: np.ndarray) -> np.ndarray:
    if entry.text is not None:
        return text_bytes(entry.text)
    return block.view(f"<u{entry.dtype.itemsize}").reshape(box.shape)
