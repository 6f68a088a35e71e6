"""Digests of contents: XXH3-128 over a parameter's bytes in C order, or over a text's UTF-8."""

from collections.abc import Callable, Iterator, Sequence

import xxhash

from core.checkpoint.heads import Head, piece_heads
from core.checkpoint.model import TensorEntry
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
