"""Prefetch threads: fill and digest the next blocks of a group of files while filled blocks are written in order.

A *step* is the next block of each file of the group. A wide block, of a transposed parameter, uses the memory of all
prefetch threads: it is filled when everything the threads filled before is written.

Only writing is left to the thread that asks for the steps: writes to one file exclude one another, so a single large
file takes at least as long as its writes. Blocks of headers alone take no prefetch thread from contents behind them.

Workers of the process that become idle are borrowed as further threads: the last of a few files is filled by all.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Generic, Protocol, TypeVar

import numpy as np

from reshard.core.plan.model import ParameterPlan
from reshard.core.runtime.budget import MAX_PREFETCH_THREADS, GroupBuffers
from reshard.core.runtime.idle_workers import current_idle_workers
from reshard.core.runtime.records import Record
from reshard.core.transfer.fetches import RankBlock
from reshard.core.transfer.file_blocks import Block
from reshard.core.transfer.reader import BlockReader


class BlockUser(Protocol):
    """The target rank's file that blocks are filled for."""

    @property
    def parameters(self) -> Mapping[str, ParameterPlan]:
        """The rank's parameters by name."""

    def crc_sums(self, block: RankBlock) -> list[int]:
        """CRC sums of a filled block, for the file's CRC."""

    def digest(self, block: RankBlock) -> None:
        """Digest a filled block; called in the file's order, from any thread."""


User = TypeVar("User", bound=BlockUser)
_LITERAL_BYTES = 64 * 2**10
"""Of headers that are not worth a thread: those between contents, not a whole file's."""
_MOST_STEPS_PER_THREAD = 2
Step = Sequence[Block | None]
"""The next block of each rank's file; None where a file has no more blocks."""


class FilledBlock(Record, Generic[User]):
    """A filled block of a rank's file, and its CRC sums."""

    user: User
    block: RankBlock
    crc_sums: list[int]


FilledStep = Iterable[FilledBlock[User]]
"""The filled blocks of a step; to be iterated once."""


class _PrefetchThread(Generic[User]):
    """One thread's reader, and its buffer for each rank's block."""

    def __init__(self, reader: BlockReader, users: Sequence[User], buffers: Sequence[np.ndarray]) -> None:
        self._block_reader = reader
        self._users = users
        self._buffers = buffers

    def fill(self, step: Step) -> FilledStep[User]:
        """Fill the blocks of one step with literal bytes and contents; each is digested when it is iterated over."""
        blocks = _with_literals(step, self._users, self._buffers)
        self._block_reader.fill([block for _, block in blocks])
        return _digested(_filled(blocks))

    def fill_after(self, before: Future[FilledStep[User]] | None, step: Step) -> FilledStep[User]:
        """Fill and digest the blocks of one step, whose digests go on from those of the step `before`."""
        filled = self.fill(step)
        if before is not None:
            before.result()  # of two errors both steps raise the first
        return list(filled)


class _Filling(Record, Generic[User]):
    """A step being filled, and the thread that fills it; None if it took none."""

    filled: Future[FilledStep[User]]
    thread: _PrefetchThread[User] | None


class _Queue(Generic[User]):
    """The steps being filled, in order, and the threads that are free for more."""

    def __init__(self, pool: ThreadPoolExecutor, threads: Iterable[_PrefetchThread[User]]) -> None:
        self.free = deque(threads)
        self._pool = pool
        self._in_flight: deque[_Filling[User]] = deque()
        self._last: Future[FilledStep[User]] | None = None

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin(self, step: Step) -> None:
        """Let a free thread fill a step."""
        thread = self.free.popleft()
        self._last = self._pool.submit(copy_context().run, thread.fill_after, self._last, step)
        self._in_flight.append(_Filling(self._last, thread))

    def append(self, filled: FilledStep[User]) -> None:
        """Append a step that took no thread: one without contents, hence nothing to digest."""
        future: Future[FilledStep[User]] = Future()
        future.set_result(filled)
        self._in_flight.append(_Filling(future, None))

    def oldest(self) -> Iterator[FilledStep[User]]:
        """Yield the oldest step; then its thread is free."""
        filling = self._in_flight.popleft()
        yield filling.filled.result()
        if filling.thread is not None:
            self.free.append(filling.thread)

    def all(self) -> Iterator[FilledStep[User]]:
        """Yield all steps in order."""
        while self._in_flight:
            yield from self.oldest()


class Prefetcher(Generic[User]):
    """Prefetch threads, each with a reader and buffers; the reader `wide`, if any, fills wide blocks.

    `new_reader` opens a reader for each worker that is borrowed meanwhile; without it none is.
    """

    def __init__(
        self,
        readers: Sequence[BlockReader],
        users: Sequence[User],
        sizes: GroupBuffers,
        wide: BlockReader | None = None,
        new_reader: Callable[[], BlockReader] | None = None,
    ) -> None:
        self._readers = {*readers, *([wide] if wide else [])}
        self._users = users
        self._block_bytes = size = sizes.block_bytes
        self._new_reader = new_reader
        if wide is None:
            self._threads = [self._thread(reader) for reader in readers]
            self._wide_thread = self._threads[0]
            return
        buffers = [np.empty(sizes.wide_block_bytes, dtype=np.uint8) for _ in users]
        self._threads = [
            _PrefetchThread(reader, users, [buffer[number * size : (number + 1) * size] for buffer in buffers])
            for number, reader in enumerate(readers)
        ]
        self._wide_thread = _PrefetchThread(wide, users, buffers)

    @property
    def read_bytes(self) -> int:
        """Bytes read from the source."""
        return sum(reader.read_bytes for reader in self._readers)

    def filled(self, steps: Iterable[Step]) -> Generator[FilledStep[User], None, None]:
        """Yield the steps in order, filled; a step's buffers are reused once the next step is requested."""
        idle_workers, borrowed = current_idle_workers(), 0
        most_threads = max(MAX_PREFETCH_THREADS, len(self._threads))
        try:
            with ThreadPoolExecutor(most_threads, thread_name_prefix="reshard-prefetch") as pool:
                queue = _Queue(pool, self._threads)
                for step in steps:
                    while self._has_room() and idle_workers.borrow():
                        borrowed += 1
                        queue.free.append(self._joined())
                    if self._is_wide(step):
                        yield from queue.all()
                        yield self._wide_thread.fill(step)
                    elif len(self._threads) == 1:
                        yield self._threads[0].fill(step)
                    elif _is_literal(step):
                        queue.append(self._filled_literals(step))
                        if len(queue) > _MOST_STEPS_PER_THREAD * len(self._threads):  # a long header, cut to pieces
                            yield from queue.oldest()
                    else:
                        queue.begin(step)
                        while not queue.free:
                            yield from queue.oldest()
                yield from queue.all()
        finally:
            idle_workers.give_back(borrowed)

    def _has_room(self) -> bool:
        return self._new_reader is not None and len(self._threads) < MAX_PREFETCH_THREADS

    def _joined(self) -> _PrefetchThread[User]:
        """The thread of a borrowed worker."""
        assert self._new_reader is not None, "threads join where readers can be opened"
        reader = self._new_reader()
        self._readers.add(reader)
        thread = self._thread(reader)
        self._threads.append(thread)
        return thread

    def _thread(self, reader: BlockReader) -> _PrefetchThread[User]:
        return _PrefetchThread(reader, self._users, [np.empty(self._block_bytes, dtype=np.uint8) for _ in self._users])

    def _filled_literals(self, step: Step) -> FilledStep[User]:
        """Fill a step without contents at once: a thread would have its buffers in use until that is written."""
        buffers = [np.empty(block.size_bytes if block else 0, dtype=np.uint8) for block in step]
        return _filled(_with_literals(step, self._users, buffers))

    def _is_wide(self, step: Step) -> bool:
        return any(block is not None and block.size_bytes > self._block_bytes for block in step)


def _with_literals(step: Step, users: Sequence[User], buffers: Sequence[np.ndarray]) -> list[tuple[User, RankBlock]]:
    """Put the literal bytes of a step's blocks into buffers."""
    found = []
    for user, buffer, block in zip(users, buffers, step, strict=True):
        if block is not None:
            memory = buffer.data
            for position, literal in block.literals:
                memory[position : position + len(literal)] = literal
            found.append((user, RankBlock(user.parameters, buffer[: block.size_bytes], block.chunks)))
    return found


def _filled(blocks: Iterable[tuple[User, RankBlock]]) -> list[FilledBlock[User]]:
    return [FilledBlock(user, block, user.crc_sums(block)) for user, block in blocks]


def _digested(filled: FilledStep[User]) -> FilledStep[User]:
    """Digest each block just before it is used: of many short ones, each is in the processor's cache then."""
    for each in filled:
        each.user.digest(each.block)
        yield each


def _is_literal(step: Step) -> bool:
    """True if a step has headers only, and is small."""
    blocks = [block for block in step if block is not None]
    return not any(block.chunks for block in blocks) and sum(block.size_bytes for block in blocks) <= _LITERAL_BYTES
