"""Digests of contents: XXH3-128 over a parameter's bytes in C order, or over a text's UTF-8."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext

import numpy as np
import xxhash

from reshard.core.files.ckpt import CRC_TRAILER_BYTES
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.running_crc import ContentRange, crc_of_index
from reshard.core.runtime.idle_workers import current_idle_workers
from reshard.core.runtime.records import Record
from reshard.core.storage.hashing import RunningSha256
from reshard.core.storage.reading import SourceFile

_MOST_READERS = 2
"""For one thread that digests, in a third of the time that reading from memory takes."""
_BLOCKS_PER_READER = 2


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
    blocks = _contents(file, entries, block_bytes, assumed)
    block = next(blocks, None)
    for number, entry in enumerate(entries):
        digest = xxhash.xxh3_128()
        if entry.text is not None:
            digest.update(entry.text.encode("utf-8", "surrogatepass"))
        while block is not None and block[0] == number:
            digest.update(block[1])
            block = next(blocks, None)
        yield digest.hexdigest()


class FileDigests(Record):
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
    sha256: RunningSha256 | None = None,
) -> FileDigests:
    """Read a whole file once, front to back; an encrypted one's tags are checked on the way.

    Idle workers of the process read ahead in a local file. `take` receives the bytes of each parameter's contents, in
    order, with its name; `sha256` those of the file, as it is stored.

    Raises:
        CheckpointError: the file is truncated, or a tag is wrong.
        StorageError: the file cannot be read.
    """
    reading = _Reading(index, advance, take)
    if sha256 and isinstance(file, DecryptedSource):
        for block in file.stream(sha256.add):
            reading.add(block)
        return reading.digests()
    with closing(file_blocks(file, block_bytes)) as blocks:
        for block in blocks:
            with sha256.adding(block) if sha256 else nullcontext():
                reading.add(block)
    return reading.digests()


class _Place(Record, order=True):
    """Where an extent of a parameter is in the file."""

    start: int
    stop: int
    name: str


class _Reading:
    """A file whose blocks arrive in order; a parameter's extents are consecutive, so one digest at a time suffices."""

    def __init__(
        self, index: FileIndex, advance: Callable[[int], None], take: Callable[[str, memoryview], None] | None
    ) -> None:
        # those without extents are digested here
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
        self._places = sorted(
            _Place(extent.offset, extent.offset + extent.length, name)
            for name, entry in index.entries.items()
            for extent in entry.extents
            if extent.length
        )
        self._done = 0  # extents that were added to their last byte

    def add(self, block: memoryview) -> None:
        """Add the next bytes."""
        end = self._offset + len(block)
        contents: list[ContentRange] = []
        heads: list[memoryview] = []
        position = 0
        while self._done < len(self._places) and self._places[self._done].start < end:
            place = self._places[self._done]
            start, stop = max(place.start - self._offset, 0), min(place.stop, end) - self._offset
            heads.append(block[position:start])
            contents.append(ContentRange(place.name, start, stop))
            self._add_content(place.name, block[start:stop])
            position = stop
            if place.stop > end:
                break
            self._done += 1
            self._end_parameter(place.name)
        heads.append(block[position:])
        self._heads.update(b"".join(heads))
        self._advance(sum(content.stop - content.start for content in contents))  # at once: a block may hold thousands
        if self._crc:
            covered = block[: max(0, self._crc_stop - self._offset)]
            self._crc.add(covered, contents, self._crc.sums(covered, contents))
        self._offset = end

    def _add_content(self, name: str, content: memoryview) -> None:
        self._digest.update(content)
        if self._take:
            self._take(name, content)

    def _end_parameter(self, name: str) -> None:
        """Digest a parameter whose extents are all done."""
        if self._done == len(self._places) or self._places[self._done].name != name:
            self._parameters[name] = self._digest.hexdigest()
            self._digest.reset()

    def digests(self) -> FileDigests:
        """Return the digests once all blocks were added."""
        return FileDigests(self._parameters, self._heads.hexdigest(), self._crc.value() if self._crc else None)


def file_blocks(file: SourceFile, block_bytes: int) -> Generator[memoryview, None, None]:
    """Yield a whole file, decrypted if it was opened so, in blocks, each valid until the next one is requested."""
    if isinstance(file, DecryptedSource):
        yield from file.stream()
    elif file.location.store.is_near:
        yield from _near_blocks(file, block_bytes)
    else:
        yield from (block for _, block in read_in_blocks(file, [(0, file.size_bytes)], block_bytes))


def _near_blocks(file: SourceFile, block_bytes: int) -> Generator[memoryview, None, None]:
    """Yield the blocks of a file that is near; as soon as workers are idle, they read ahead."""
    idle_workers, borrowed = current_idle_workers(), 0
    buffer = np.empty(block_bytes, np.uint8).data
    ahead = _BlocksAhead()
    try:
        with ThreadPoolExecutor(_MOST_READERS, thread_name_prefix="reshard-check") as pool:
            for offset in range(0, file.size_bytes, block_bytes):
                length = min(block_bytes, file.size_bytes - offset)
                if borrowed < _MOST_READERS and idle_workers.borrow():
                    borrowed += 1
                    ahead.free += [np.empty(block_bytes, np.uint8).data for _ in range(_BLOCKS_PER_READER)]
                if not borrowed:
                    file.read_into(offset, buffer[:length])
                    yield buffer[:length]
                    continue
                if not ahead.free:
                    yield from ahead.oldest()
                free = ahead.free.pop()
                done = pool.submit(file.read_into, offset, free[:length])
                ahead.in_flight.append(_BlockAhead(done, free, length))
            while ahead.in_flight:
                yield from ahead.oldest()
    finally:
        idle_workers.give_back(borrowed)


class _BlockAhead(Record):
    """A block that is being read, `length` bytes of its buffer."""

    done: Future[None]
    buffer: memoryview
    length: int


class _BlocksAhead:
    """Blocks being read, the first one first, and buffers for more."""

    def __init__(self) -> None:
        self.in_flight: deque[_BlockAhead] = deque()
        self.free: list[memoryview] = []

    def oldest(self) -> Iterator[memoryview]:
        """Yield the block that was begun first, once it is read; then its buffer is free."""
        block = self.in_flight.popleft()
        block.done.result()
        yield block.buffer[: block.length]
        self.free.append(block.buffer)


class _ContentRead(Record):
    """An extent of an entry to read, and the bytes expected before it, which are read with it."""

    number: int
    head: bytes
    offset: int
    length: int


def _contents(
    file: SourceFile, entries: Sequence[TensorEntry], block_bytes: int, checks_heads: bool
) -> Iterator[tuple[int, memoryview]]:
    """Yield the contents of entries, each block with its entry's number; optionally check their heads."""
    reads: list[_ContentRead] = []
    for number, entry in enumerate(entries):
        heads = [head.data for head in expected_heads(entry)] if checks_heads else [b""] * len(entry.extents)
        for extent, head in zip(entry.extents, heads, strict=True):
            offset = extent.offset - len(head)
            reads.append(_ContentRead(number, head, offset, extent.length + len(head)))
    begun = -1
    for place, block in read_in_blocks(file, [(read.offset, read.length) for read in reads], block_bytes):
        read = reads[place]
        head = read.head if place != begun else b""
        begun = place
        if block[: len(head)] != head:
            raise HeaderMismatchError
        yield read.number, block[len(head) :]
