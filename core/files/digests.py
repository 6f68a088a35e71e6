"""Digests of contents: XXH3-128 over a parameter's bytes in C order, or over a text's UTF-8."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np
import xxhash

from reshard.core.files.ckpt import CRC_TRAILER_BYTES
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.files.remote_index.templates import Head, expected_heads
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.running_crc import ContentRange, crc_of_index
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.idle_workers import current_idle_workers
from reshard.core.storage.reading import SourceFile

_MOST_READERS = 2
"""For one thread that digests, in a third of the time that reading from memory takes."""
_BLOCKS_PER_READER = 2
_FEW_EXTENTS = 8
"""In a block."""


class HeaderMismatchError(Exception):
    """A file has other headers than were assumed."""


def content_digests(
    file: SourceFile, entries: Sequence[TensorEntry], block_bytes: int, *, assumed: bool = False
) -> Iterator[str]:
    """Yield the digests of entries' contents in hex, read in blocks.

    Raises:
        HeaderMismatchError: headers were `assumed`, and the bytes before contents differ from them.
        CheckpointError: the file is truncated.
        StorageError: the file cannot be read.
    """
    checks_heads = assumed and not file.location.is_local  # only indexes of remote files are assumed
    blocks = _contents(file, entries, block_bytes, checks_heads)
    block = next(blocks, None)
    for number, entry in enumerate(entries):
        digest = xxhash.xxh3_128()
        if entry.text is not None:
            digest.update(entry.text.encode("utf-8", "surrogatepass"))
        while block is not None and block[0] == number:
            digest.update(block[1])
            block = next(blocks, None)
        yield digest.hexdigest()


@frozen
class FileDigests:
    """Digests, in hex, of all of a file's bytes.

    Attributes:
        parameters: of each parameter's contents, by name.
        heads: of the bytes around the contents.
        crc: CRC-32 that the file should carry; None if it carries none.
    """

    parameters: dict[str, str]
    heads: str
    crc: int | None


def file_digests(
    file: SourceFile,
    index: FileIndex,
    block_bytes: int,
    advance: Callable[[int], None] = lambda _: None,
    take: Callable[[str, memoryview], None] | None = None,
) -> FileDigests:
    """Read a whole file once, front to back; an encrypted one's tags are checked on the way.

    Idle workers of the process read ahead in a local file. `take` receives the bytes of each parameter's contents, in
    order, with its name.

    Raises:
        CheckpointError: the file is truncated, or a tag is wrong.
        StorageError: the file cannot be read.
    """
    reading = _Reading(index, advance, take)
    with closing(_blocks(file, block_bytes)) as blocks:
        for block in blocks:
            reading.add(block)
    return reading.digests()


class _Reading:
    """A file whose blocks arrive in order; a parameter's extents are consecutive, so one digest at a time suffices."""

    def __init__(
        self, index: FileIndex, advance: Callable[[int], None], take: Callable[[str, memoryview], None] | None
    ) -> None:
        nothing = xxhash.xxh3_128_hexdigest(b"")
        self._parameters = {
            name: xxhash.xxh3_128_hexdigest(entry.text.encode("utf-8", "surrogatepass")) if entry.text else nothing
            for name, entry in index.entries.items()
        }
        self._crc = crc_of_index(index) if index.has_crc else None
        self._crc_stop = index.size_bytes - (CRC_TRAILER_BYTES if index.format is CheckpointFormat.CKPT else 0)
        self._advance = advance
        self._take = take
        self._heads, self._digest = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._offset = 0
        # (first byte, stop, name) of each extent
        self._extents = sorted(
            (extent.offset, extent.offset + extent.length, name)
            for name, entry in index.entries.items()
            for extent in entry.extents
            if extent.length
        )
        self._done = 0

    def add(self, block: memoryview) -> None:
        """Add the next bytes."""
        offset, end = self._offset, self._offset + len(block)
        stop = bisect_left(self._extents, (end,), self._done)
        here = [
            (name, max(first - offset, 0), min(last, end) - offset)
            for first, last, name in self._extents[self._done : stop]
        ]
        ends = [0, *(after for _, _, after in here)]
        starts = [*(start for _, start, _ in here), len(block)]
        self._heads.update(b"".join([block[after:start] for after, start in zip(ends, starts, strict=True)]))
        if len(here) > _FEW_EXTENTS and len({name for name, _, _ in here}) == len(here):
            # a parameter's extents are consecutive: one between those of two others has all of its contents
            self._add_in_turn(block, here[:1])
            self._add_whole(block, here[1:-1])
            self._add_in_turn(block, here[-1:])
        else:
            self._add_in_turn(block, here)
        self._advance(sum(after - start for _, start, after in here))  # at once: a block may hold thousands
        if self._crc:
            covered = block[: max(0, self._crc_stop - offset)]
            self._crc.add(covered, here, self._crc.sums(covered, here))
        self._offset = end

    def _add_in_turn(self, block: memoryview, ranges: Sequence[ContentRange]) -> None:
        """Add contents in the block, one after another; they may have begun before it, and the last may go on after."""
        for name, start, stop in ranges:
            self._digest.update(block[start:stop])
            if self._take:
                self._take(name, block[start:stop])
            if self._extents[self._done][1] > self._offset + len(block):
                return
            self._done += 1
            if self._done == len(self._extents) or self._extents[self._done][2] != name:
                self._parameters[name] = self._digest.hexdigest()
                self._digest.reset()

    def _add_whole(self, block: memoryview, ranges: Sequence[ContentRange]) -> None:
        """Add parameters whose contents are in the block, in half the time."""
        digest = xxhash.xxh3_128_hexdigest
        self._parameters.update({name: digest(block[start:stop]) for name, start, stop in ranges})
        self._done += len(ranges)
        if self._take:
            for name, start, stop in ranges:
                self._take(name, block[start:stop])

    def digests(self) -> FileDigests:
        """Return the digests once all blocks were added."""
        return FileDigests(self._parameters, self._heads.hexdigest(), self._crc.value() if self._crc else None)


def _blocks(file: SourceFile, block_bytes: int) -> Generator[memoryview, None, None]:
    """Yield a whole file in blocks, each valid until the next one is requested."""
    if isinstance(file, DecryptedSource):
        yield from file.stream()
    elif file.location.is_local:
        yield from _local_blocks(file, block_bytes)
    else:
        yield from (block for _, block in read_in_blocks(file, [(0, file.size_bytes)], block_bytes))


def _local_blocks(file: SourceFile, block_bytes: int) -> Generator[memoryview, None, None]:
    """Yield the blocks of a local file; as soon as workers are idle, they read ahead."""
    idle_workers, borrowed = current_idle_workers(), 0
    buffer = np.empty(block_bytes, np.uint8).data
    free: list[memoryview] = []
    in_flight: deque[tuple[Future[None], memoryview, int]] = deque()
    try:
        with ThreadPoolExecutor(_MOST_READERS, thread_name_prefix="reshard-check") as pool:
            for offset in range(0, file.size_bytes, block_bytes):
                length = min(block_bytes, file.size_bytes - offset)
                if borrowed < _MOST_READERS and idle_workers.borrow():
                    borrowed += 1
                    free += [np.empty(block_bytes, np.uint8).data for _ in range(_BLOCKS_PER_READER)]
                if not borrowed:
                    file.read_into(offset, buffer[:length])
                    yield buffer[:length]
                    continue
                if not free:
                    yield from _oldest(in_flight, free)
                ahead = free.pop()
                in_flight.append((pool.submit(file.read_into, offset, ahead[:length]), ahead, length))
            while in_flight:
                yield from _oldest(in_flight, free)
    finally:
        idle_workers.give_back(borrowed)


def _oldest(in_flight: deque[tuple[Future[None], memoryview, int]], free: list[memoryview]) -> Iterator[memoryview]:
    """Yield the block that was begun first, once it is read; then its buffer is free."""
    future, buffer, length = in_flight.popleft()
    future.result()
    yield buffer[:length]
    free.append(buffer)


def _contents(
    file: SourceFile, entries: Sequence[TensorEntry], block_bytes: int, checks_heads: bool
) -> Iterator[tuple[int, memoryview]]:
    """Yield the contents of entries, each block with its entry's number; optionally check their heads."""
    owners: list[int] = []
    heads: list[Head] = []
    ranges: list[tuple[int, int]] = []
    for number, entry in enumerate(entries):
        no_heads = [(extent.offset, b"") for extent in entry.extents]
        for extent, head in zip(entry.extents, expected_heads(entry) if checks_heads else no_heads, strict=True):
            owners.append(number)
            heads.append(head)
            ranges.append((head[0], extent.offset + extent.length - head[0]))
    last = -1
    for place, block in read_in_blocks(file, ranges, block_bytes):
        head_bytes = heads[place][1] if place != last else b""
        last = place
        if block[: len(head_bytes)] != head_bytes:
            raise HeaderMismatchError
        yield owners[place], block[len(head_bytes) :]
