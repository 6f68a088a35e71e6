"""CRC-32s of tensors in source files, made from the parts of them that are read.

Target ranks read a tensor in parts, in any order and in several threads. Each part gets a checksum as it is read, and
together they give that of the tensor. Another process reports its parts to the process of the run.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Protocol

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.files.crc32 import combine_crc32, crc32
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.slices import Extent

CrcParts = Mapping[str, np.ndarray]
"""URL of a source file -> (parts, 3) int64: the first byte, the end, and the CRC-32 of each part that was read."""

_MAX_PARTS = 1024
"""Parts of a tensor that do not touch one another: more, as single columns are, are left to be read at the end."""


class CrcWatch(Protocol):
    """Adds to checksums what is read of source files."""

    def watch(self, record: CatalogRecord, file: SourceFile) -> SourceFile:
        """Return the file of a source rank, whose reads are counted from now on."""


class ReportedCrcs:
    """The CRCs of what this process reads for a run of another one; for any number of threads."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[str, FileCrcs]] = {}

    def watch(self, record: CatalogRecord, file: SourceFile) -> SourceFile:
        """Return the file of a source rank, whose reads are counted from now on."""
        extents = (extent for entry in record.index.entries.values() for extent in entry.extents)
        tensors = [ExtentCrc(extent) for extent in extents if extent.length]
        _, crcs = self._files.setdefault(record.rank, (record.location, FileCrcs(tensors)))
        return crcs.watched(file)

    def parts(self) -> CrcParts:
        """Return what was read so far."""
        rows: dict[str, list[tuple[int, int, int]]] = {}
        for location, crcs in self._files.values():
            rows.setdefault(location, []).extend(crcs.parts())
        return {location: np.array(of_file, np.int64) for location, of_file in rows.items() if of_file}


class ExtentCrc:
    """The CRC-32 of bytes in a file: of a tensor, or of a storage of several.

    Attributes:
        start: the first byte.
        stop: their end.
        actual: the CRC-32 of all of them, once they were read.
    """

    def __init__(self, extent: Extent) -> None:
        self.start, self.stop = extent.offset, extent.offset + extent.length
        self.actual: int | None = None
        self._parts: list[list[int]] = []  # in order, apart, as [start, stop, CRC-32]
        self._left_bytes = extent.length

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """What was read, as (start, stop, CRC-32)."""
        if self.actual is not None:
            yield self.start, self.stop, self.actual
        yield from ((start, stop, crc) for start, stop, crc in self._parts)

    def left(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """What was not read between two bytes, as (start, stop)."""
        if self.actual is not None:
            return
        for low, high, _ in islice(self._parts, max(0, bisect_left(self._parts, [start]) - 1), None):
            if stop <= low:
                break
            if start < low:
                yield start, low
            start = max(start, high)
            if start >= stop:
                return
        yield start, stop

    def add(self, start: int, stop: int, crc: int, most_parts: float) -> None:
        """Add a part; ignored if some of it was added meanwhile, or if there are too many."""
        parts = self._parts
        place = bisect_left(parts, [start])
        before = parts[place - 1] if place else None
        if self.actual is not None or (before and before[1] > start) or (place < len(parts) and parts[place][0] < stop):
            return
        if before and before[1] == start:
            before[1:] = stop, combine_crc32(before[2], crc, stop - start)
        elif len(parts) < most_parts:
            parts.insert(place, [start, stop, crc])
        else:
            return
        self._left_bytes -= stop - start
        if not self._left_bytes:
            whole = 0
            for low, high, each in parts:
                whole = combine_crc32(whole, each, high - low)
            self.actual = whole
            parts.clear()


class FileCrcs:
    """The CRC-32s of tensors in one file, which share no bytes; for any number of threads."""

    def __init__(self, tensors: Iterable[ExtentCrc]) -> None:
        self.tensors = sorted(tensors, key=lambda tensor: tensor.start)
        self._starts = [tensor.start for tensor in self.tensors]
        self._lock = Lock()

    def watched(self, file: SourceFile) -> SourceFile:
        """Return the file, whose reads are added from now on."""
        return _WatchedFile(file, self)

    def left(self) -> Iterator[tuple[int, int]]:
        """What was not read, as (offset, length)."""
        for tensor in self.tensors:
            yield from ((start, stop - start) for start, stop in tensor.left(tensor.start, tensor.stop))

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """What was read, as (start, stop, CRC-32)."""
        with self._lock:
            return iter([part for tensor in self.tensors for part in tensor.parts()])

    def add_part(self, start: int, stop: int, crc: int) -> None:
        """Add a part that another process has read; what is not a part of one tensor is left to be read."""
        number = bisect_right(self._starts, start) - 1
        if number >= 0 and stop <= self.tensors[number].stop:
            with self._lock:
                self.tensors[number].add(start, stop, crc, _MAX_PARTS)

    def add(self, offset: int, data: memoryview, *, is_rest: bool = False) -> None:
        """Add bytes that were read; the rest closes gaps, so it may add any number of parts."""
        most_parts = math.inf if is_rest else _MAX_PARTS
        end = offset + len(data)
        for number in range(max(0, bisect_right(self._starts, offset) - 1), len(self.tensors)):
            tensor = self.tensors[number]
            if tensor.start >= end:
                return
            low, high = max(offset, tensor.start), min(end, tensor.stop)
            if low < high and tensor.actual is None:
                with self._lock:
                    wanted = list(tensor.left(low, high))
                for start, stop in wanted:
                    crc = crc32(data[start - offset : stop - offset])
                    with self._lock:
                        tensor.add(start, stop, crc, most_parts)


class _WatchedFile:
    """A source file whose bytes are added to checksums as they are read."""

    def __init__(self, file: SourceFile, crcs: FileCrcs) -> None:
        self.location = file.location
        self.size_bytes = file.size_bytes
        self.version = file.version
        self._file = file
        self._crcs = crcs

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._file.read_into(offset, buffer)
        self._crcs.add(offset, buffer)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = self._file.read_many(ranges)
        for (offset, _), data in zip(ranges, found, strict=True):
            self._crcs.add(offset, memoryview(data))
        return found

    def close(self) -> None:
        self._file.close()
