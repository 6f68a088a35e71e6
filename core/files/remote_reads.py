"""Reads remote files with few requests, many of them in flight. Ranges are (offset, length)."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from threading import Semaphore

import numpy as np

from reshard.core.runtime.records import Record
from reshard.core.storage.coalescing import coalesced, covering_range
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES, submitted
from reshard.core.storage.urls import Location

REQUEST_BYTES = 4 << 20
"""Limit of one request: enough for a connection's full speed, few enough for several in flight."""
START_BYTES = 64 << 10

_END_BYTES = 64
_MAX_BYTES_IN_FLIGHT = 16 << 20
"""For a sequential reader; a connection delivers some 100 MiB/s."""


_WHOLE_FILES_AT_ONCE = 4
"""Each has so many bytes in flight."""


class WholeFiles:
    """Room for reads of whole files: of those that are not near, a few at once."""

    def __init__(self) -> None:
        self._room = Semaphore(_WHOLE_FILES_AT_ONCE)

    def room_for(self, file: SourceFile) -> AbstractContextManager[object]:
        """Wait for the others, if need be."""
        return nullcontext() if file.location.store.is_near else self._room


def whole_file_readers(location: Location, workers: int) -> int:
    """Return how many of so many workers read whole files at once, which are where this one is."""
    return workers if location.store.is_near else min(workers, _WHOLE_FILES_AT_ONCE)


class _ReadRange(Record):
    offset: int
    length: int
    number: int


def read_coalesced(file: SourceFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read ranges, close ones with one request; all requests run at once."""
    items = [_ReadRange(offset, length, number) for number, (offset, length) in enumerate(ranges)]
    groups = list(coalesced(items, gap_bytes=GAP_WORTH_READING_BYTES, max_bytes=REQUEST_BYTES))
    covering = [covering_range(group) for group in groups]
    found = [b""] * len(ranges)
    for group, (start, _), data in zip(groups, covering, read_split(file, covering), strict=True):
        for item in group:
            found[item.number] = data[item.offset - start :][: item.length]
    return found


def read_split(file: SourceFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read ranges, long ones with several requests; all requests run at once."""
    pieces = [list(_pieces(range_)) for range_ in ranges]
    answers = iter(file.read_many(list(chain.from_iterable(pieces))))
    return [b"".join(islice(answers, len(requests))) for requests in pieces]


def read_ahead(file: SourceFile, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of ranges, in order, in pieces of at most 4 MiB, each with its range's number.

    The next pieces are in flight while one is being processed; short ones that are close together in this order share a
    request. It waits for requests, so concurrent requests must not use it.
    """
    in_flight: deque[tuple[list[_ReadRange], Future[list[bytes]]]] = deque()
    bytes_in_flight = 0
    try:
        for group in _requests(ranges):
            start, length = covering_range(group)
            while in_flight and bytes_in_flight + length > _MAX_BYTES_IN_FLIGHT:
                bytes_in_flight -= covering_range(in_flight[0][0])[1]
                yield from _split_answer(*in_flight.popleft())
            bytes_in_flight += length
            in_flight.append((group, submitted(file.read_many, [(start, length)])))
        while in_flight:
            yield from _split_answer(*in_flight.popleft())
    finally:
        for _, future in in_flight:
            future.cancel()


def read_in_blocks(
    file: SourceFile, ranges: Iterable[tuple[int, int]], block_bytes: int = REQUEST_BYTES
) -> Iterator[tuple[int, memoryview]]:
    """Yield the bytes of ranges, in order, in blocks, each with its range's number; reads ahead in a remote file.

    A block is valid until the next one is requested.
    """
    if not file.location.store.is_near:
        yield from ((number, memoryview(data)) for number, data in read_ahead(file, ranges))
        return
    buffer = np.empty(block_bytes, np.uint8).data  # not zeroed: pages that no content reaches cost nothing
    for number, (offset, length) in enumerate(ranges):
        for start in range(0, length, block_bytes):
            block = buffer[: min(block_bytes, length - start)]
            file.read_into(offset + start, block)
            yield number, block


def _requests(ranges: Iterable[tuple[int, int]]) -> Iterator[list[_ReadRange]]:
    """Group the pieces of ranges, in order, by request."""
    group: list[_ReadRange] = []
    for number, range_ in enumerate(ranges):
        for offset, length in _pieces(range_):
            if group:
                start, stop = group[0].offset, group[-1].offset + group[-1].length
                if not (stop <= offset <= stop + GAP_WORTH_READING_BYTES and offset + length <= start + REQUEST_BYTES):
                    yield group
                    group = []
            group.append(_ReadRange(offset, length, number))
    if group:
        yield group


def _split_answer(group: Sequence[_ReadRange], future: "Future[list[bytes]]") -> Iterator[tuple[int, bytes]]:
    [data] = future.result()
    for item in group:
        start = item.offset - group[0].offset
        yield item.number, data[start : start + item.length]


def _pieces(range_: tuple[int, int]) -> Iterator[tuple[int, int]]:
    offset, length = range_
    for start in range(0, length, REQUEST_BYTES):
        yield offset + start, min(REQUEST_BYTES, length - start)


class PrefetchedEnds:
    """A remote file whose first and last bytes, which identify it, were read by two concurrent requests."""

    def __init__(self, file: SourceFile) -> None:
        self.location = file.location
        self.size_bytes = file.size_bytes
        self.version = file.version
        self._file = file
        end = max(0, self.size_bytes - _END_BYTES)
        ranges = [(0, min(START_BYTES, self.size_bytes)), (end, self.size_bytes - end)]
        if ranges[0][1] == self.size_bytes:
            del ranges[1]
        self._ends = [(start, data) for (start, _), data in zip(ranges, file.read_many(ranges), strict=True)]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset` on."""
        [data] = self.read_many([(offset, len(buffer))])
        buffer[:] = data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges; the file is asked only for those outside its ends."""
        known = [self._known(offset, length) for offset, length in ranges]
        unknown = [range_ for range_, data in zip(ranges, known, strict=True) if data is None]
        asked = iter(self._file.read_many(unknown) if unknown else ())
        return [next(asked) if data is None else data for data in known]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _known(self, offset: int, length: int) -> bytes | None:
        for start, data in self._ends:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return None
