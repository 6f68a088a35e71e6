"""A file in memory, read like one on a storage."""

from collections.abc import Sequence

from reshard.core.errors import CheckpointError
from reshard.core.storage.urls import name_in_messages


class MemoryFile:
    """A `SourceFile` of bytes in memory; `name` identifies it in messages."""

    version = ""

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self.location = name_in_messages(name)
        self.size_bytes = len(data)
        self._data = memoryview(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset` on; a CheckpointError if the data is too short."""
        buffer[:] = self._slice(offset, len(buffer))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges, each given by offset and length; a CheckpointError if the data is too short."""
        return [bytes(self._slice(offset, length)) for offset, length in ranges]

    def close(self) -> None:
        """Do nothing: the bytes belong to the caller."""

    def _slice(self, offset: int, length: int) -> memoryview:
        if offset + length > self.size_bytes:
            raise CheckpointError(f"{self.location}: ends at byte {self.size_bytes}, earlier than it should: truncated")
        return self._data[offset : offset + length]
