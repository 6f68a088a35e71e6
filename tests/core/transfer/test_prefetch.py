"""Prefetch threads: steps come filled and in order, whatever thread fills them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from threading import Event

import numpy as np
import pytest

from reshard.core.errors import StorageError
from reshard.core.plan.model import ParameterPlan
from reshard.core.runtime.budget import MAX_PREFETCH_THREADS, GroupBuffers
from reshard.core.runtime.idle_workers import IdleWorkers, lending
from reshard.core.tensor.slices import TensorSlice
from reshard.core.transfer.fetches import RankBlock
from reshard.core.transfer.file_blocks import Block, Chunk
from reshard.core.transfer.prefetch import FilledStep, Prefetcher

BLOCK_BYTES = 4
CHUNK = Chunk("a", TensorSlice.whole((1,)), 0, 1)


class File:
    """Notes what is digested: the first byte of each block."""

    parameters: Mapping[str, ParameterPlan] = {}

    def __init__(self) -> None:
        self.digested: list[int] = []

    def crc_sums(self, block: RankBlock) -> list[int]:
        return [int(block.buffer.sum())]

    def digest(self, block: RankBlock) -> None:
        self.digested.append(int(block.buffer[0]))


class Reader:
    """Reads for a while; fails at the block that begins with `fails_at`."""

    def __init__(self, pause_seconds: float = 0, fails_at: int | None = None) -> None:
        self.read_bytes = 0
        self._pause_seconds = pause_seconds
        self._fails_at = fails_at

    def fill(self, blocks: Sequence[RankBlock]) -> None:
        time.sleep(self._pause_seconds)
        for block in blocks:
            if block.buffer[0] == self._fails_at:
                raise StorageError("broken")
            self.read_bytes += len(block.buffer)


def step(number: int, size: int = BLOCK_BYTES) -> list[Block | None]:
    second = None if number % 2 else Block(1, [(0, b"\1")])
    return [Block(size, [(0, bytes([number] * size))], [CHUNK]), second]


def headers(number: int) -> list[Block | None]:
    return [Block(2, [(0, bytes([number] * 2))]), None]


def beginning(filled: FilledStep[File]) -> np.ndarray:
    """The first file's block."""
    first, *_ = [each.block.buffer for each in filled]  # the others have to be digested, too
    return first


def buffers(wide_bytes: int = 0) -> GroupBuffers:
    return GroupBuffers(BLOCK_BYTES, BLOCK_BYTES, 0, 1, None, 0, wide_block_bytes=wide_bytes)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_steps_come_in_order(threads: int, wide: bool) -> None:
    readers = [Reader(pause_seconds=0.01 / (number + 1)) for number in range(threads)]
    sizes = [BLOCK_BYTES * 3 if wide and number % 3 == 2 else BLOCK_BYTES for number in range(9)]
    prefetcher = (
        Prefetcher(readers, [File(), File()], buffers(BLOCK_BYTES * 3), readers[0])
        if wide
        else Prefetcher(readers, [File(), File()], buffers())
    )
    found = [
        [(each.block.buffer.tobytes(), each.crc_sums) for each in filled]
        for filled in prefetcher.filled(step(number, size) for number, size in enumerate(sizes))
    ]
    want = [
        [(bytes([number] * size), [number * size]), *([] if number % 2 else [(b"\1", [1])])]
        for number, size in enumerate(sizes)
    ]
    assert found == want
    assert prefetcher.read_bytes == sum(sizes) + 5


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_blocks_are_digested_in_order(threads: int, wide: bool) -> None:
    readers = [Reader(pause_seconds=0.01 / (number + 1)) for number in range(threads)]  # later steps are read first
    sizes = [BLOCK_BYTES * 3 if wide and number % 4 == 3 else BLOCK_BYTES for number in range(12)]
    files = [File(), File()]
    lone = readers[0] if wide else None
    prefetcher = Prefetcher(readers, files, buffers(BLOCK_BYTES * 3 if wide else 0), lone)
    written = 0
    for filled in prefetcher.filled(step(number, size) for number, size in enumerate(sizes)):
        for each in filled:
            if each.user is files[0]:
                assert each.block.buffer[0] == files[0].digested[written] == written
                written += 1
    assert files[0].digested == list(range(12))
    assert len(files[1].digested) == 6


def test_headers_take_no_thread_from_contents() -> None:
    """Between two blocks of contents they are written while both threads read on."""
    begun: list[int] = []
    both = Event()

    class Noting(Reader):
        def fill(self, blocks: Sequence[RankBlock]) -> None:
            begun.append(int(blocks[0].buffer[0]))
            if sorted(begun) == [0, 2]:
                both.set()

    steps = [step(0), headers(1), step(2), headers(3), headers(4), step(5)]
    prefetcher = Prefetcher([Noting(), Noting()], [File(), File()], buffers())
    found = []
    for filled in prefetcher.filled(steps):
        assert both.wait(60), begun
        found.append(beginning(filled).tobytes())
    assert found == [bytes([number] * (2 if number in (1, 3, 4) else BLOCK_BYTES)) for number in range(6)]
    assert sorted(begun) == [0, 2, 5]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failure_is_raised_in_its_place(threads: int) -> None:
    prefetcher = Prefetcher([Reader(fails_at=4) for _ in range(threads)], [File(), File()], buffers())
    done: list[int] = []
    with pytest.raises(StorageError, match="broken"):
        done.extend(int(beginning(filled)[0]) for filled in prefetcher.filled(map(step, range(9))))
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_workers_that_become_idle_fill_steps_too(threads: int, wide: bool) -> None:
    opened: list[Reader] = []

    def open_reader() -> Reader:
        opened.append(Reader(pause_seconds=0.001))
        return opened[-1]

    sizes = [BLOCK_BYTES * 3 if wide and number % 5 == 4 else BLOCK_BYTES for number in range(40)]
    readers = [Reader(pause_seconds=0.002) for _ in range(threads)]
    lone = readers[0] if wide else None
    prefetcher = Prefetcher(readers, [File(), File()], buffers(BLOCK_BYTES * 3 if wide else 0), lone, open_reader)
    found, lent = [], []
    with lending(IdleWorkers()) as idle:
        for number, filled in enumerate(prefetcher.filled(step(number, size) for number, size in enumerate(sizes))):
            found.append(beginning(filled).tobytes())
            lent.append(idle.lent)
            idle.offer(number // 10)
    assert found == [bytes([number] * size) for number, size in enumerate(sizes)]
    assert (lent[0], lent[39], idle.lent) == (0, 3, 0)
    assert len(opened) == 3
    assert all(reader.read_bytes for reader in opened)
    assert prefetcher.read_bytes == sum(sizes) + len(sizes) // 2


def test_no_more_are_borrowed_than_a_writer_can_follow_nor_without_readers_for_them() -> None:
    with lending(IdleWorkers()) as idle:
        idle.offer(100)
        for _ in Prefetcher([Reader()], [File(), File()], buffers(), None, Reader).filled(map(step, range(3))):
            assert idle.lent == MAX_PREFETCH_THREADS - 1
        for _ in Prefetcher([Reader()], [File(), File()], buffers()).filled(map(step, range(3))):
            assert not idle.lent


@pytest.mark.parametrize("fails_at", [None, 4])
def test_borrowed_workers_come_back_when_the_work_ends_early(fails_at: int | None) -> None:
    with lending(IdleWorkers()) as idle:
        idle.offer(2)
        readers = [Reader(fails_at=fails_at)]
        filled = Prefetcher(readers, [File(), File()], buffers(), None, lambda: Reader(fails_at=fails_at)).filled(
            map(step, range(9))
        )
        next(filled)
        assert idle.lent == 2
        if fails_at is None:
            filled.close()
        else:
            with pytest.raises(StorageError, match="broken"):
                list(filled)
        assert not idle.lent


def test_a_long_header_is_not_put_into_memory_as_a_whole() -> None:
    begun = 0

    def steps() -> Iterator[list[Block | None]]:
        nonlocal begun
        for number in range(100):
            begun += 1
            yield headers(number)

    prefetcher = Prefetcher([Reader(), Reader()], [File(), File()], buffers())
    most = 0
    for number, filled in enumerate(prefetcher.filled(steps())):
        assert [each.block.buffer.tobytes() for each in filled] == [bytes([number] * 2)]
        most = max(most, begun - number)
    assert (begun, most) == (100, 5)
