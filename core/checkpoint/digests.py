"""Digests of contents: XXH3-128 over a parameter's bytes in C order, or over a text's UTF-8."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import xxhash

from core.checkpoint.ckpt import CRC_TRAILER_BYTES
from core.checkpoint.crc_writing import crc_of_index
from core.checkpoint.heads import Head, piece_heads
from core.checkpoint.model import CheckpointFormat, FileIndex, TensorEntry
from core.checkpoint.reading import read_ahead
from core.storage.files import SourceFile


class UnlikeError(Exception):
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
        UnlikeError: the file's headers are `assumed`, and before contents stand others.
        CheckpointError: the file ends before the contents do.
        StorageError: it cannot be read.
    """
    parts = _local_parts(file, entries, buffer) if file.location.is_local else _remote_parts(file, entries, assumed)
    yield from _digests_of(parts, entries, advance)


def streamed_digests(
    pieces: Iterator[memoryview], entries: Sequence[TensorEntry], advance: Callable[[int], None] = lambda _: None
) -> Iterator[str]:
    """The digests of parameters' contents in hex, from all of a file, piece by piece; the pieces are used up.

    The entries are in the order in which their contents stand in the file.

    Raises: what the pieces do.
    """
    yield from _digests_of(_streamed_parts(pieces, entries), entries, advance)
    for _ in pieces:
        pass


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


def digests_and_crc(
    file: SourceFile, index: FileIndex, buffer: memoryview, advance: Callable[[int], None] = lambda _: None
) -> tuple[dict[str, str], int]:
    """The digests of all parameters' contents in hex, by name, and the file's CRC-32, from reading all of it once.

    Raises:
        CheckpointError: the file ends before its contents do.
        StorageError: it cannot be read.
    """
    digests = {
        name: xxhash.xxh3_128_hexdigest((entry.text or "").encode("utf-8", "surrogatepass"))
        for name, entry in index.entries.items()
    }
    # a parameter's extents follow one another: one digest at a time is under way
    digest, crc = xxhash.xxh3_128(), crc_of_index(index)
    contents = deque(
        sorted(
            (extent.offset, extent.offset + extent.length, name)
            for name, entry in index.entries.items()
            for extent in entry.extents
            if extent.length
        )
    )
    covered_bytes = index.size_bytes - (CRC_TRAILER_BYTES if index.format is CheckpointFormat.CKPT else 0)
    offset = 0
    for block in _whole_file(file, covered_bytes, buffer):
        stretches = []
        while contents and contents[0][0] < offset + len(block):
            first, last, name = contents[0]
            start, stop = max(first - offset, 0), min(last - offset, len(block))
            stretches.append((name, start, stop))
            digest.update(block[start:stop])
            advance(stop - start)
            if last > offset + len(block):
                break
            contents.popleft()
            if not contents or contents[0][2] != name:
                digests[name] = digest.hexdigest()
                digest.reset()
        crc.add(block, stretches, crc.sums(block, stretches))
        offset += len(block)
    return digests, crc.value()


def _whole_file(file: SourceFile, stop: int, buffer: memoryview) -> Iterator[memoryview]:
    """All bytes before `stop`: by way of `buffer`, or of a remote file ahead."""
    if not file.location.is_local:
        yield from (memoryview(data) for _, data in read_ahead(file, [(0, stop)]))
        return
    for start in range(0, stop, len(buffer)):
        block = buffer[: min(len(buffer), stop - start)]
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


def _streamed_parts(
    pieces: Iterator[memoryview], entries: Sequence[TensorEntry]
) -> Iterator[tuple[int, memoryview]]:
    piece, stop = memoryview(b""), 0  # and where it ends in the file
    for number, entry in enumerate(entries):
        for extent in entry.extents:
            offset, end = extent.offset, extent.offset + extent.length
            while offset < end:
                while stop <= offset:
                    piece = next(pieces)
                    stop += len(piece)
                start = stop - len(piece)
                part = piece[offset - start : end - start]
                yield number, part
                offset += len(part)


def _remote_parts(file: SourceFile, entries: Sequence[TensorEntry], assumed: bool) -> Iterator[tuple[int, bytes]]:
    """The contents, and what stands before them if that is to be checked, in the order of `entries`."""
    owners: list[int] = []
    heads: list[Head] = []
    ranges: list[tuple[int, int]] = []
    for number, entry in enumerate(entries):
        for extent, head in zip(entry.extents, piece_heads(entry) if assumed else _no_heads(entry), strict=True):
            owners.append(number)
            heads.append(head)
            ranges.append((head[0], extent.offset + extent.length - head[0]))
    last = -1
    for place, data in read_ahead(file, ranges):
        expected = heads[place][1] if place != last else b""
        last = place
        if not data.startswith(expected):
            raise UnlikeError
        yield owners[place], data[len(expected) :]


def _no_heads(entry: TensorEntry) -> Iterator[Head]:
    return ((extent.offset, b"") for extent in entry.extents)
