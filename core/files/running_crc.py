"""The CRC-32 of a file that is read or written block by block, and how to store it in a written one.

A `.ckpt` file ends in the CRC of all its bytes. A `.safetensors` file has it in the header, over the tensors in the
order of their names: each gets a checksum of its own, and all are combined at the end. Files are written front to back,
so its contents are read for the CRC first, and then again to be written. A `.distcp` file has that of each tensor
behind it.
"""

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from reshard.core.errors import CatalogError
from reshard.core.files import ckpt_writing, safetensors
from reshard.core.files.crc32 import combine_crc32, crc32
from reshard.core.files.model import CheckpointFormat, Content, FileIndex, FilePlan, OutputEntry, TensorEntry
from reshard.core.runtime.records import Record
from reshard.core.storage.writing import OutputFile

_SUM = struct.Struct("<L")


class ContentRange(Record):
    """Bytes `start` to `stop` of a block, which continue the contents of the parameter `name`."""

    name: str
    start: int
    stop: int


class RunningCrc(Protocol):
    """The CRC of a file whose blocks arrive in order."""

    def sums(self, block: memoryview, ranges: Sequence[ContentRange]) -> list[int]:
        """Compute a block's checksums, the costly part; in any order and any thread."""

    def add(self, block: memoryview, ranges: Sequence[ContentRange], sums: Iterable[int]) -> None:
        """Add the file's next block, whose checksums are `sums`; CRCs that belong in it are put there."""

    def complete(self, file: OutputFile, name: str) -> None:
        """Store the CRC in a file that all blocks were written to, or check that its header has it.

        Raises:
            CatalogError: the contents are not those of the CRC in the header.
        """

    def put_into_heads(self, heads: bytearray) -> None:
        """Store the CRC in the bytes around a file's contents."""


class WholeCrc(RunningCrc, Protocol):
    """A single CRC for a file."""

    def value(self) -> int:
        """Return the CRC of all blocks added."""


def running_crc(format: CheckpointFormat, file_plan: FilePlan, entries: Sequence[OutputEntry]) -> RunningCrc | None:
    """Return the CRC of a file to be written; None if it carries none."""
    if file_plan.sum_places:
        return _OfArchives(file_plan)
    if file_plan.crc_offset is None:
        return None
    if format is CheckpointFormat.CKPT:
        return _OfBytes()
    return _OfTensors(entries, file_plan.crc_offset, file_plan.heads)


def with_crc_in_header(file_plan: FilePlan, crc: RunningCrc) -> FilePlan:
    """Return a file's plan with the CRC of all blocks added in the header, which comes before all contents."""
    heads = bytearray(file_plan.heads)
    crc.put_into_heads(heads)
    return replace(file_plan, segments=(bytes(heads), *file_plan.segments[1:]))


def crc_of_index(index: FileIndex) -> WholeCrc:
    """Return the CRC of a file to be read."""
    return _OfBytes() if index.format is CheckpointFormat.CKPT else _OfTensors(list(index.entries.values()))


class _OfBytes:
    def __init__(self) -> None:
        self._crc = 0

    def sums(self, block: memoryview, ranges: Sequence[ContentRange]) -> list[int]:
        return [crc32(block)]

    def add(self, block: memoryview, ranges: Sequence[ContentRange], sums: Iterable[int]) -> None:
        for crc in sums:
            self._crc = combine_crc32(self._crc, crc, len(block))

    def value(self) -> int:
        return self._crc

    def complete(self, file: OutputFile, name: str) -> None:
        file.write(ckpt_writing.crc_trailer(self._crc))

    def put_into_heads(self, heads: bytearray) -> None:
        heads += ckpt_writing.crc_trailer(self._crc)


class _ByName:
    """The CRC of each parameter's contents so far."""

    def __init__(self) -> None:
        self._crcs: dict[str, int] = {}

    def sums(self, block: memoryview, ranges: Sequence[ContentRange]) -> list[int]:
        return [crc32(block[content.start : content.stop]) for content in ranges]

    def add(self, block: memoryview, ranges: Sequence[ContentRange], sums: Iterable[int]) -> None:
        for content, crc in zip(ranges, sums, strict=True):
            before = self._crcs.get(content.name, 0)
            self._crcs[content.name] = combine_crc32(before, crc, content.stop - content.start)


class _OfTensors(_ByName):
    """The CRC over all tensors; it belongs at `offset` of the `heads`."""

    def __init__(
        self, entries: Sequence[OutputEntry] | Sequence[TensorEntry], offset: int = 0, heads: bytes = b""
    ) -> None:
        super().__init__()
        self._offset = offset
        self._heads = heads
        self._tensors = [entry for entry in entries if entry.text is None]
        self._scalars = {entry.name: b"" for entry in self._tensors if safetensors.is_integer_scalar(entry)}

    def add(self, block: memoryview, ranges: Sequence[ContentRange], sums: Iterable[int]) -> None:
        super().add(block, ranges, sums)
        for content in ranges:
            if content.name in self._scalars:
                self._scalars[content.name] += bytes(block[content.start : content.stop])

    def value(self) -> int:
        return safetensors.crc_of_tensors(self._tensors, self._crcs, self._scalars)

    def complete(self, file: OutputFile, name: str) -> None:
        if not self._heads.startswith(safetensors.crc_field(self.value()), self._offset):
            raise CatalogError(
                f"{name}: the contents changed between the two readings that a CRC in the header takes. "
                "Retry when nothing writes to the source"
            )

    def put_into_heads(self, heads: bytearray) -> None:
        # it is in the header, before all contents
        field = safetensors.crc_field(self.value())
        heads[self._offset : self._offset + len(field)] = field


class _OfArchives(_ByName):
    def __init__(self, file_plan: FilePlan) -> None:
        super().__init__()
        self._file_plan = file_plan
        self._left = deque(file_plan.sum_places)
        self._offset = 0

    def add(self, block: memoryview, ranges: Sequence[ContentRange], sums: Iterable[int]) -> None:
        super().add(block, ranges, sums)
        end = self._offset + len(block)
        while self._left and self._left[0].offset < end:
            place = self._left[0]
            # a place may be divided between two blocks
            first, last = max(place.offset, self._offset), min(place.offset + _SUM.size, end)
            field = self._field(place.name)[first - place.offset : last - place.offset]
            block[first - self._offset : last - self._offset] = field
            if place.offset + _SUM.size > end:
                break
            self._left.popleft()
        self._offset = end

    def complete(self, file: OutputFile, name: str) -> None:
        """Do nothing: the blocks have them."""

    def put_into_heads(self, heads: bytearray) -> None:
        places = deque(self._file_plan.sum_places)
        stop = content_bytes = 0  # of the file so far
        for segment in self._file_plan.segments:
            if isinstance(segment, Content):
                stop += segment.stop - segment.start
                content_bytes += segment.stop - segment.start
                continue
            stop += len(segment)
            while places and places[0].offset < stop:
                place = places.popleft()
                start = place.offset - content_bytes
                heads[start : start + _SUM.size] = self._field(place.name)

    def _field(self, name: str) -> bytes:
        return _SUM.pack(self._crcs.get(name, 0))
