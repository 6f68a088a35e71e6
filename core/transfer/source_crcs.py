"""CRCs of source tensors, checked with the bytes that a conversion reads anyway.

A tensor of a DCP checkpoint has a CRC-32 over its storage, which target ranks read in parts, in any order and in
several threads. Each part gets a checksum as it is read; together they give that of the storage. What is not read, as
for ranks that an earlier run has done, is read before the target is committed. Bytes that are read again are not
checked again.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from threading import Event, Lock

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import ConversionError
from reshard.core.files.crc32 import combine_crc32, crc32
from reshard.core.files.model import StoredCrc
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.torch_zip import crc_problem
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.reading import SourceFile

_MAX_PARTS = 1024
"""Parts of a storage that do not touch one another: more, as single columns are, are left to be read at the end."""


class SourceCrcs:
    """The CRCs of all tensors that a plan reads; for any number of threads.

    Empty if the source has none, or if they were checked when it was opened.
    """

    def __init__(self, plan: ConversionPlan) -> None:
        self._records: dict[str, CatalogRecord] = {}
        tensors: dict[str, list[_Tensor]] = {}
        with_crcs = [record for record in plan.inputs.catalog.records.values() if record.index.crcs]
        names = _source_names(plan) if with_crcs else set()
        for record in with_crcs:
            for name, stored in record.index.crcs.items():
                if name in names and stored.extent.length:
                    self._records.setdefault(record.location, record)
                    tensors.setdefault(record.location, []).append(_Tensor(name, stored))
        self._files = {location: _FileCrcs(of_file) for location, of_file in tensors.items()}
        self.read_bytes = 0
        """Bytes that were read for no other reason than their CRC."""

    def watch(self, record: CatalogRecord, file: SourceFile) -> SourceFile:
        """Return the file of a source rank, whose reads are counted from now on."""
        crcs = self._files.get(record.location)
        return _Watched(file, crcs) if crcs else file

    def left_bytes(self) -> int:
        """Bytes of storages that were not read yet."""
        return sum(length for file in self._files.values() for _, length in file.left())

    def read_rest(
        self,
        open_unchanged: Callable[[CatalogRecord], SourceFile],
        workers: int,
        stop: Event,
        advance: Callable[[int], None],
    ) -> None:
        """Read what was not read yet; `open_unchanged` opens the files.

        Raises:
            CatalogError: a file changed.
            ConversionError: some of it is still missing.
            StorageError: a file cannot be read.
        """

        def read(location: str) -> int:
            crcs = self._files[location]
            ranges = list(crcs.left())
            position, count, last = 0, 0, -1
            with closing(open_unchanged(self._records[location])) as file:
                for number, block in read_in_blocks(file, ranges):
                    position = position if number == last else ranges[number][0]
                    crcs.add(position, block, is_rest=True)
                    position, last = position + len(block), number
                    count += len(block)
                    advance(len(block))
            return count

        unfinished = [location for location, file in self._files.items() if any(file.left())]
        self.read_bytes += sum(in_threads(read, unfinished, workers, stop))
        if self.left_bytes():
            raise ConversionError(f"{self.left_bytes()} bytes of the source have no CRC. This is a bug in reshard")

    def problems(self) -> dict[tuple[str, str], str]:
        """The tensors that do not have their CRC, of those read whole: (URL of the file, name) -> what is wrong."""
        return {
            (location, tensor.name): crc_problem(location, tensor.name, tensor.stored, tensor.actual)
            for location, file in self._files.items()
            for tensor in file.tensors
            if tensor.actual is not None and tensor.actual != tensor.stored.crc
        }


def _source_names(plan: ConversionPlan) -> set[str]:
    names = {source.name for each in plan.match.resharded for source in each.sources}
    return names | {each.source_name for each in plan.match.passed_through}


class _Tensor:
    """A tensor's storage, and the parts of it that were read: in order, apart, as [start, stop, CRC-32]."""

    def __init__(self, name: str, stored: StoredCrc) -> None:
        self.name = name
        self.stored = stored
        self.start, self.stop = stored.extent.offset, stored.extent.offset + stored.extent.length
        self.actual: int | None = None
        self._parts: list[list[int]] = []
        self._left_bytes = stored.extent.length

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
        """Add a part; ignored if another thread added some of it meanwhile, or if there are too many."""
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


class _FileCrcs:
    def __init__(self, tensors: Sequence[_Tensor]) -> None:
        self.tensors = sorted(tensors, key=lambda tensor: tensor.start)
        self._starts = [tensor.start for tensor in self.tensors]
        self._lock = Lock()

    def left(self) -> Iterator[tuple[int, int]]:
        """What was not read, as (offset, length)."""
        for tensor in self.tensors:
            yield from ((start, stop - start) for start, stop in tensor.left(tensor.start, tensor.stop))

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


class _Watched:
    """A source file whose bytes are added to checksums as they are read."""

    def __init__(self, file: SourceFile, crcs: _FileCrcs) -> None:
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
