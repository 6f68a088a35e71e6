"""How a memory limit is shared out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.budget import LARGEST_BLOCKS_TOGETHER_BYTES, LARGEST_BUFFER_BYTES, MOST_BLOCKS_TOGETHER, Budget, share_memory
from core.request import SMALLEST_MEMORY_LIMIT_BYTES

MIB = 2**20


@given(st.integers(SMALLEST_MEMORY_LIMIT_BYTES, 2**45), st.integers(1, 1024), st.integers(1, MOST_BLOCKS_TOGETHER))
def test_any_limit_that_may_be_asked_for_is_kept(limit_bytes: int, workers: int, count: int) -> None:
    budget = share_memory(limit_bytes, workers)
    assert 1 <= budget.workers <= workers
    count = min(count, budget.most_blocks)
    block_bytes = budget.block_bytes(count)
    assert budget.workers * (budget.scratch_bytes + count * block_bytes) == budget.peak_bytes(count) <= limit_bytes
    assert count * block_bytes <= max(LARGEST_BUFFER_BYTES, LARGEST_BLOCKS_TOGETHER_BYTES)
    for size in (block_bytes, budget.scratch_bytes):
        assert 64 * 2**10 <= size <= LARGEST_BUFFER_BYTES
        assert size % 4096 == 0


@pytest.mark.parametrize(
    ("limit_bytes", "workers", "count", "want"),
    [
        (2048 * MIB, 8, 1, (8, 4 * MIB, 4 * MIB)),
        (2048 * MIB, 8, 4, (8, 4 * MIB, 4 * MIB)),
        (2048 * MIB, 8, 32, (8, 4 * MIB, MIB)),
        (16 * MIB, 8, 1, (8, MIB, MIB)),
        (16 * MIB, 8, 4, (8, MIB, MIB // 4)),
        (16 * MIB, 1024, 1, (128, 64 * 2**10, 64 * 2**10)),
        (16 * MIB, 3, 1, (3, 682 * 4096, 683 * 4096)),
    ],
)
def test_limits(limit_bytes: int, workers: int, count: int, want: tuple[int, int, int]) -> None:
    budget = share_memory(limit_bytes, workers)
    assert (budget.workers, budget.scratch_bytes, budget.block_bytes(count)) == want


def test_little_memory_lets_fewer_ranks_share() -> None:
    assert share_memory(2048 * MIB, 8).most_blocks == MOST_BLOCKS_TOGETHER
    assert share_memory(16 * MIB, 8).most_blocks == 16
    assert share_memory(16 * MIB, 1024).most_blocks == 1


def test_something_is_always_left_to_work_with() -> None:
    assert share_memory(1, 8) == Budget(1, 128 * 2**10)
