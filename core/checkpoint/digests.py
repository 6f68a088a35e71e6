"""Digests of contents: XXH3-128 over a parameter's bytes in C order, or over a text's UTF-8."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from reshard.core.checkpoint.encryption.decrypted_source import DecryptedSource
from reshard.core.checkpoint.formats.ckpt import CRC_TRAILER_BYTES
from reshard.core.checkpoint.formats.running_crc import ContentRange, crc_of_index
from reshard.core.checkpoint.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.checkpoint.remote_index.templates import Head, expected_heads
from reshard.core.checkpoint.remote_reads import read_ahead
from reshard.core.storage.reading import SourceFile


class HeaderMismatchError(Exception):
    """A file that was assumed to have the headers of another has others."""


def content_digests(
    file: SourceFile,
    entries: Sequence[TensorEntry],
    buffer: memoryview,
    advance: Callable[[int], None] = lambda _: None,
    *,
    assumed: bool = False,
) -> Iterator[str]:
    """The digests of parameters' contents in hex, read block by block: into `buffer`, or of a remote file ahead.

    Raises:
        HeaderMismatchError: the file's headers are `assumed`, and before contents stand others.
        CheckpointError: the file ends before the contents do.
        StorageError: it cannot be read.
    """
    parts = _local_parts(file, entries, buffer) if file.location.is_local else _remote_parts(file, entries, assumed)
    yield from _digests_of(parts, entries, advance)


def _digests_of(
    parts: Iterator[tuple[int, memoryview | bytes]], entries: Sequence[TensorEntry], advance: Callable[[int], None]
) -> Iterator[str]:
    part = next(parts, None)
    for number, entry in enumerate(entries):
        digest = xxhash.xxh3_128()
        if entry.text is not None:
            digest.update(entry.text.encode("utf-8", "surrogatepass"))
        while part is not None and part[0] == number:
            digest.update(part[1])
            advance(len(part[1]))
            part = next(parts, None)
        yield digest.hexdigest()


@dataclass(frozen=True)
class FileDigests:
    """Digests, in hex, of all of a file's bytes.

    Attributes:
        parameters: of each parameter's contents, by name.
        heads: of what stands around the contents.
        crc: the CRC-32 that the file should carry; None if it carries none.
    """

    parameters: dict[str, str]
    heads: str
    crc: int | None


def file_digests(
    file: SourceFile,
    index: FileIndex,
    buffer: memoryview,
    advance: Callable[[int], None] = lambda _: None,
    take: Callable[[str, memoryview], None] = lambda *_: None,
) -> FileDigests:
    """Reads a file once, front to back, all of it; of an encrypted one the tags are checked on the way.

    `take` gets the bytes of each parameter's contents, in their order, with its name.

    Raises:
        CheckpointError: the file ends before its contents do, or a tag is wrong.
        StorageError: it cannot be read.
    """
    reading = _Reading(index, advance, take)
    for block in _blocks(file, buffer):
        reading.add(block)
    return reading.digests()


class _Reading:
    """A file whose blocks come in their order; a parameter's extents follow one another, so one digest is under way."""

    def __init__(
        self, index: FileIndex, advance: Callable[[int], None], take: Callable[[str, memoryview], None]
    ) -> None:
        self._parameters = {
            name: xxhash.xxh3_128_hexdigest((entry.text or "").encode("utf-8", "surrogatepass"))
            for name, entry in index.entries.items()
        }
        self._crc = crc_of_index(index) if index.has_crc else None
        self._crc_stop = index.size_bytes - (CRC_TRAILER_BYTES if index.format is CheckpointFormat.CKPT else 0)
        self._advance = advance
        self._take = take
        self._heads, self._digest = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._offset = 0
        self._left = deque(
            sorted(
                (extent.offset, extent.offset + extent.length, name)
                for name, entry in index.entries.items()
                for extent in entry.extents
                if extent.length
            )
        )

    def add(self, block: memoryview) -> None:
        """Takes in the next bytes."""
        ranges: list[ContentRange] = []
        position, end = 0, self._offset + len(block)
        while self._left and self._left[0][0] < end:
            first, last, name = self._left[0]
            start, stop = max(first - self._offset, 0), min(last, end) - self._offset
            self._heads.update(block[position:start])
            self._digest.update(block[start:stop])
            self._take(name, block[start:stop])
            self._advance(stop - start)
            ranges.append((name, start, stop))
            position = stop
            if last > end:
                break
            self._left.popleft()
            if not self._left or self._left[0][2] != name:
                self._parameters[name] = self._digest.hexdigest()
                self._digest.reset()
        self._heads.update(block[position:])
        if self._crc:
            covered = block[: max(0, self._crc_stop - self._offset)]
            self._crc.add(covered, ranges, self._crc.sums(covered, ranges))
        self._offset = end

    def digests(self) -> FileDigests:
        """Those of a file of which all blocks were taken in."""
        return FileDigests(self._parameters, self._heads.hexdigest(), self._crc.value() if self._crc else None)


def _blocks(file: SourceFile, buffer: memoryview) -> Iterator[memoryview]:
    """All bytes of a file: by way of `buffer`, or of a remote file ahead."""
    if isinstance(file, DecryptedSource):
        yield from file.stream()
    elif not file.location.is_local:
        yield from (memoryview(data) for _, data in read_ahead(file, [(0, file.size_bytes)]))
    else:
        for start in range(0, file.size_bytes, len(buffer)):
            block = buffer[: min(len(buffer), file.size_bytes - start)]
            file.read_into(start, block)
            yield block


def _local_parts(
    file: SourceFile, entries: Sequence[TensorEntry], buffer: memoryview
) -> Iterator[tuple[int, memoryview]]:
    for number, entry in enumerate(entries):
        for extent in entry.extents:
            for start in range(0, extent.length, len(buffer)):
                part = buffer[: min(len(buffer), extent.length - start)]
                file.read_into(extent.offset + start, part)
                yield number, part


def _remote_parts(file: SourceFile, entries: Sequence[TensorEntry], assumed: bool) -> Iterator[tuple[int, bytes]]:
    """The contents, and what stands before them if that is to be checked, in the order of `entries`."""
    owners: list[int] = []
    heads: list[Head] = []
    ranges: list[tuple[int, int]] = []
    for number, entry in enumerate(entries):
        for extent, head in zip(entry.extents, expected_heads(entry) if assumed else _no_heads(entry), strict=True):
            owners.append(number)
            heads.append(head)
            ranges.append((head[0], extent.offset + extent.length - head[0]))
    last = -1
    for place, data in read_ahead(file, ranges):
        expected = heads[place][1] if place != last else b""
        last = place
        if not data.startswith(expected):
            raise HeaderMismatchError
        yield owners[place], data[len(expected) :]


def _no_heads(entry: TensorEntry) -> Iterator[Head]:
    return ((extent.offset, b"") for extent in entry.extents)
