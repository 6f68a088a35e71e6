"""Prefetch threads: fill blocks of the same files, each thread the next ones, while filled blocks are written in order.

A *step* is the next block of each file that is being written. A block that is wider than the others, as those of
turned parameters are, has the memory of all prefetch threads: one fills it when what the others filled is written.
"""

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import cycle
from typing import Generic, Protocol, TypeVar

import numpy as np

from reshard.core.plan.plan import ParameterPlan
from reshard.core.runtime.budget import Shares
from reshard.core.transfer.file_blocks import Block
from reshard.core.transfer.reader import Gatherer, RankBlock


class BlockUser(Protocol):
    """Who blocks are filled for: one target rank's file."""

    @property
    def parameters(self) -> Mapping[str, ParameterPlan]:
        """The rank's parameters by name."""

    def crc_sums(self, block: RankBlock) -> list[int]:
        """What the file's CRC needs to know of a filled block."""


User = TypeVar("User", bound=BlockUser)
Step = Sequence[Block | None]
"""The next block of each rank's file; None where a file has no more."""
FilledStep = list[tuple[User, RankBlock, list[int]]]
"""Each rank's block, and what the CRC of its file needs to know of it."""


class _PrefetchThread(Generic[User]):
    """What a thread fills blocks with: a buffer for each rank's, and a gatherer."""

    def __init__(self, gatherer: Gatherer, users: Sequence[User], buffers: Sequence[np.ndarray]) -> None:
        self._gatherer = gatherer
        self._users = users
        self._buffers = buffers

    def fill(self, step: Step) -> FilledStep[User]:
        """Puts literal bytes and contents into the blocks of one step."""
        filled = []
        for user, buffer, block in zip(self._users, self._buffers, step, strict=True):
            if block is not None:
                for position, literal in block.literals:
                    buffer[position : position + len(literal)] = np.frombuffer(literal, np.uint8)
                filled.append((user, RankBlock(user.parameters, buffer[: block.size_bytes], block.parts)))
        self._gatherer.fill([block for _, block in filled])
        return [(user, block, user.crc_sums(block)) for user, block in filled]


class Prefetcher(Generic[User]):
    """Prefetch threads, each with a gatherer and buffers; `wide` fills wide blocks, if there may be any."""

    def __init__(
        self, gatherers: Sequence[Gatherer], users: Sequence[User], shares: Shares, wide: Gatherer | None = None
    ) -> None:
        self._gatherers = frozenset(gatherers) | ({wide} if wide else frozenset())
        self._block_bytes = size = shares.block_bytes
        if wide is None:
            self._lanes = [
                _PrefetchThread(gatherer, users, [np.empty(size, dtype=np.uint8) for _ in users])
                for gatherer in gatherers
            ]
            self._wide_lane = self._lanes[0]
            return
        buffers = [np.empty(shares.wide_block_bytes, dtype=np.uint8) for _ in users]
        self._lanes = [
            _PrefetchThread(gatherer, users, [buffer[number * size : (number + 1) * size] for buffer in buffers])
            for number, gatherer in enumerate(gatherers)
        ]
        self._wide_lane = _PrefetchThread(wide, users, buffers)

    @property
    def read_bytes(self) -> int:
        """Bytes that were read from the source."""
        return sum(gatherer.read_bytes for gatherer in self._gatherers)

    def filled(self, steps: Iterable[Step]) -> Generator[FilledStep[User], None, None]:
        """The steps in order, their blocks filled; those of one are to be done with before the next is asked for."""
        if len(self._lanes) == 1:
            for step in steps:
                yield (self._wide_lane if self._is_wide(step) else self._lanes[0]).fill(step)
            return
        with ThreadPoolExecutor(len(self._lanes), thread_name_prefix="reshard-lane") as pool:
            under_way: deque[Future[FilledStep[User]]] = deque()
            threads = cycle(self._lanes)
            for step in steps:
                if self._is_wide(step):
                    while under_way:
                        yield under_way.popleft().result()
                    yield self._wide_lane.fill(step)
                    continue
                under_way.append(pool.submit(copy_context().run, next(threads).fill, step))
                if len(under_way) == len(self._lanes):
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()

    def _is_wide(self, step: Step) -> bool:
        return any(block is not None and block.size_bytes > self._block_bytes for block in step)
