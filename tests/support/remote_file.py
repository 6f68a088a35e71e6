"""Files as on an object store: every range read is counted. Contents may be made up as they are read, so that files of
many gigabytes cost nothing."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from threading import Lock

from reshard.core.errors import CheckpointError
from reshard.core.files.ckpt_writing import plan_file
from reshard.core.files.model import OutputEntry
from reshard.core.storage.urls import Location, parse_url

_FILLING = bytes(range(1, 252))


class RemoteFile:
    """A SourceFile of literal bytes at offsets, and of made-up bytes elsewhere; local if its URL is.

    `rounds` are the ranges that were asked for at once.
    """

    version = "1"

    def __init__(
        self, parts: Iterable[tuple[int, bytes]], size_bytes: int, url: str = "memory:///somewhere/model.ckpt"
    ) -> None:
        self.location: Location = parse_url(url)
        self.size_bytes = size_bytes
        self.rounds: list[list[tuple[int, int]]] = []
        self._parts = sorted(parts)
        self._starts = [start for start, _ in self._parts]
        self._lock = Lock()

    @property
    def requests(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def read_bytes(self) -> int:
        return sum(length for ranges in self.rounds for _, length in ranges)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._lock:
            self.rounds.append(list(ranges))
        return [self._read(offset, length) for offset, length in ranges]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read_many([(offset, len(buffer))])[0]

    def close(self) -> None:
        pass

    def _read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise CheckpointError(f"read of {length} bytes at {offset} beyond {self.size_bytes}")
        shift = offset % len(_FILLING)
        data = bytearray((_FILLING * (length // len(_FILLING) + 2))[shift : shift + length])
        for start, part in self._parts[max(0, bisect_right(self._starts, offset) - 1) :]:
            if start >= offset + length:
                break
            first, last = max(start, offset), min(start + len(part), offset + length)
            if first < last:
                data[first - offset : last - offset] = part[first - start : last - start]
        return bytes(data)


def planned_parts(entries: Sequence[OutputEntry]) -> tuple[list[tuple[int, bytes]], int]:
    """The literal bytes of a `.ckpt` file of these entries, with their offsets, and its size."""
    parts, position = [], 0
    plan = plan_file(entries)
    for segment in plan.segments:
        if isinstance(segment, bytes):
            parts.append((position, segment))
            position += len(segment)
        else:
            position += segment.stop - segment.start
    assert position == plan.size_bytes
    return parts, position


def sparse_file(entries: Sequence[OutputEntry], url: str = "memory:///somewhere/model.ckpt") -> RemoteFile:
    """A `.ckpt` file of these entries with made-up contents."""
    return RemoteFile(*planned_parts(entries), url)
