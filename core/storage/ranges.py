"""Reads ranges of files into buffers that are filled one after another, so that each byte is copied once."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing


class RangeReader(ABC):
    """A file open for reading, of which a request brings a range."""

    is_proven = False

    def __init__(self, size_bytes: int, version: str) -> None:
        self.size_bytes = size_bytes
        self.version = version

    def read_into(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts`, one after another, by one request.

        Raises:
            ConnectionError: more or fewer bytes came than were asked for.
        """
        length = min(sum(map(len, parts)), max(0, self.size_bytes - offset))
        if not length:  # HTTP has no empty ranges
            return 0
        scatter = Scatter(parts)
        with closing(self.pieces(offset, length)) as pieces:
            for piece in pieces:
                scatter.write(memoryview(piece))
        if scatter.count != length:
            raise ConnectionError(f"wrong length: got {scatter.count} of {length} bytes")
        return length

    @abstractmethod
    def pieces(self, offset: int, length: int) -> Generator[bytes | memoryview, None, None]:
        """Yield the bytes of a range, in pieces of any sizes."""

    def close(self) -> None:  # noqa: B027 (most have nothing of their own)
        """Do nothing: connections are the storage's."""


class Scatter:
    """Buffers to be filled one after another.

    Attributes:
        count: bytes received.
    """

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = deque(parts)
        self.count = 0

    def write(self, data: memoryview) -> None:
        """Fill the next buffers with all of `data`; a ConnectionError if it is longer than they are."""
        self.count += len(data)
        while data:
            if not self._parts:
                raise ConnectionError("long read: got more bytes than requested")
            part = self._parts.popleft()
            taken = data[: len(part)]
            part[: len(taken)] = taken
            if len(taken) < len(part):
                self._parts.appendleft(part[len(taken) :])
            data = data[len(taken) :]
