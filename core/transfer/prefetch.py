"""Prefetch threads: fill the next blocks of a group of files while filled blocks are written in order.

A *step* is the next block of each file of the group. A wide block, of a transposed parameter, uses the memory of all
prefetch threads: it is filled when everything the threads filled before is written.
"""

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import cycle
from typing import Generic, Protocol, TypeVar

import numpy as np

from reshard.core.plan.model import ParameterPlan
from reshard.core.runtime.budget import GroupBuffers
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


User = TypeVar("User", bound=BlockUser)
Step = Sequence[Block | None]
"""The next block of each rank's file; None where a file has no more blocks."""
FilledStep = list[tuple[User, RankBlock, list[int]]]
"""Each rank's file, its filled block, and the block's CRC sums."""


class _PrefetchThread(Generic[User]):
    """One thread's reader, and its buffer for each rank's block."""

    def __init__(self, reader: BlockReader, users: Sequence[User], buffers: Sequence[np.ndarray]) -> None:
        self._block_reader = reader
        self._users = users
        self._buffers = buffers

    def fill(self, step: Step) -> FilledStep[User]:
        """Fill the blocks of one step with literal bytes and contents."""
        filled = []
        for user, buffer, block in zip(self._users, self._buffers, step, strict=True):
            if block is not None:
                for position, literal in block.literals:
                    buffer[position : position + len(literal)] = np.frombuffer(literal, np.uint8)
                filled.append((user, RankBlock(user.parameters, buffer[: block.size_bytes], block.chunks)))
        self._block_reader.fill([block for _, block in filled])
        return [(user, block, user.crc_sums(block)) for user, block in filled]


class Prefetcher(Generic[User]):
    """Prefetch threads, each with a reader and buffers; the reader `wide`, if any, fills wide blocks."""

    def __init__(
        self,
        readers: Sequence[BlockReader],
        users: Sequence[User],
        sizes: GroupBuffers,
        wide: BlockReader | None = None,
    ) -> None:
        self._readers = frozenset(readers) | ({wide} if wide else frozenset())
        self._block_bytes = size = sizes.block_bytes
        if wide is None:
            self._threads = [
                _PrefetchThread(reader, users, [np.empty(size, dtype=np.uint8) for _ in users]) for reader in readers
            ]
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
        if len(self._threads) == 1:
            for step in steps:
                yield (self._wide_thread if self._is_wide(step) else self._threads[0]).fill(step)
            return
        with ThreadPoolExecutor(len(self._threads), thread_name_prefix="reshard-prefetch") as pool:
            in_flight: deque[Future[FilledStep[User]]] = deque()
            threads = cycle(self._threads)
            for step in steps:
                if self._is_wide(step):
                    while in_flight:
                        yield in_flight.popleft().result()
                    yield self._wide_thread.fill(step)
                    continue
                in_flight.append(pool.submit(copy_context().run, next(threads).fill, step))
                if len(in_flight) == len(self._threads):
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()

    def _is_wide(self, step: Step) -> bool:
        return any(block is not None and block.size_bytes > self._block_bytes for block in step)
