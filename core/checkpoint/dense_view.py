"""Shows a file's strided tensors as if they were in C order, past the file's end.

Frameworks that save views of memory store transposed or cut-out tensors as they are in memory. An index gives such a
tensor extents beyond the file (`place_strided`); a `DenseView` gathers what is read there, so readers need not know.
Wide gaps between elements are skipped, narrow ones read through, so a transposed matrix larger than the reader's block
is read several times.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.model import FileIndex, StridedContent, TensorEntry
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.slices import Extent, Shape, TensorSlice, contiguous_boxes

_READ_BYTES = 4 << 20
_GAP_BYTES = 16 << 10
_BOX_BYTES = 1 << 20
"""Gathered at a time."""


def open_record(record: CatalogRecord) -> SourceFile:
    """Open a source rank's file, decrypted if the source has a key, its strided tensors dense.

    An object that has changed since may be refused only when it is read, with a CatalogError.

    Raises:
        CheckpointError: the key does not decrypt the file.
        StorageError: the file does not exist, or cannot be read.
    """
    return dense(open_checkpoint(parse_url(record.location), source_key(), record.version), record.index)


def first_file(catalog: CheckpointCatalog) -> Location:
    """Return the place of one of the files, which are all on one storage."""
    return parse_url(next(iter(catalog.records.values())).location)


def dense(file: SourceFile, index: FileIndex) -> SourceFile:
    """Return a file with its strided tensors in C order."""
    return DenseView(file, index) if index.strided else file


def place_strided(entries: Sequence[TensorEntry], file_bytes: int) -> dict[str, Extent]:
    """Give strided tensors extents past a file's end: name -> extent."""
    placed = {}
    position = file_bytes
    for entry in entries:
        placed[entry.name] = Extent(position, entry.size_bytes)
        position += entry.size_bytes
    return placed


class _Strided(Record):
    entry: TensorEntry
    content: StridedContent

    @property
    def extent(self) -> Extent:
        return self.entry.extents[0]


class DenseView:
    """A file, and past its end its strided tensors in C order; thread-safe if the file is."""

    def __init__(self, file: SourceFile, index: FileIndex) -> None:
        self.location = file.location
        self.size_bytes = file.size_bytes
        self.version = file.version
        self._file = file
        strided = [_Strided(index.entries[name], content) for name, content in index.strided.items()]
        self._strided = sorted(strided, key=lambda each: each.extent.offset)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from the bytes at `offset`."""
        inside = min(max(self.size_bytes - offset, 0), len(buffer))
        if inside:
            self._file.read_into(offset, buffer[:inside])
        stop = offset + len(buffer)
        for each in self._strided:
            start, end = each.extent.offset, each.extent.offset + each.extent.length
            low, high = max(offset, start), min(stop, end)
            if low < high:
                self._gather(each, low - start, buffer[low - offset : high - offset])

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each range (offset, length)."""
        if all(offset + length <= self.size_bytes for offset, length in ranges):
            return self._file.read_many(ranges)
        found = []
        for offset, length in ranges:
            buffer = bytearray(length)
            self.read_into(offset, memoryview(buffer))
            found.append(bytes(buffer))
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _gather(self, strided: _Strided, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from the tensor's bytes in C order, from `offset` on."""
        item = strided.entry.dtype.itemsize
        first, last = offset // item, -(-(offset + len(buffer)) // item)
        position = first * item - offset
        for box in contiguous_boxes(strided.entry.shape, first, last, max(1, _BOX_BYTES // item)):
            values = np.empty(box.shape, f"V{item}")
            for part in _parts(box, strided.content.strides, item):
                self._fill(strided.content, part, values[part.relative_to(box).as_index()], item)
            data = values.reshape(-1).view(np.uint8).data
            low, high = max(position, 0), min(position + len(data), len(buffer))
            buffer[low:high] = data[low - position : high - position]
            position += len(data)

    def _fill(self, content: StridedContent, box: TensorSlice, target: np.ndarray, item: int) -> None:
        start = content.offset + sum(low * stride for low, stride in zip(box.start, content.strides, strict=True))
        data = read_bytes(self._file, start, span_bytes(box.shape, content.strides, item))
        target[...] = np.ndarray(box.shape, f"V{item}", data, strides=content.strides)


def span_bytes(shape: Shape, strides: Shape, item: int) -> int:
    """Return the bytes from the first element of a box to its last; 0 if it has none."""
    if 0 in shape:
        return 0
    return sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + item


def _parts(box: TensorSlice, strides: Shape, item: int) -> Iterator[TensorSlice]:
    """Split a box into boxes that are each worth one read."""
    axis = max(range(len(strides)), key=lambda each: strides[each] if box.shape[each] > 1 else -1)
    length, stride = box.shape[axis], strides[axis]
    inner = span_bytes((*box.shape[:axis], 1, *box.shape[axis + 1 :]), strides, item)
    total = inner + (length - 1) * stride
    if length == 1 or (total <= _READ_BYTES and stride - inner <= _GAP_BYTES):
        yield box
        return
    step = 1 if stride - inner > _GAP_BYTES else max(1, (_READ_BYTES - inner) // max(1, stride))
    for start in range(box.start[axis], box.stop[axis], step):
        low, high = list(box.start), list(box.stop)
        low[axis], high[axis] = start, min(start + step, box.stop[axis])
        yield from _parts(TensorSlice(tuple(low), tuple(high)), strides, item)
