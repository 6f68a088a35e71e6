"""How a memory limit is shared out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.budget import LARGEST_BLOCK_BYTES, Budget, share_memory
from core.request import SMALLEST_MEMORY_LIMIT_BYTES


@given(st.integers(SMALLEST_MEMORY_LIMIT_BYTES, 2**45), st.integers(1, 1024))
def test_any_limit_that_may_be_asked_for_is_kept(limit_bytes: int, workers: int) -> None:
    budget = share_memory(limit_bytes, workers)
    assert budget.peak_bytes <= limit_bytes
    assert 1 <= budget.workers <= workers
    assert budget.block_bytes <= LARGEST_BLOCK_BYTES
    assert budget.block_bytes % 4096 == 0
    more = Budget(budget.workers, budget.block_bytes + 4096)
    assert more.peak_bytes > limit_bytes or more.block_bytes > LARGEST_BLOCK_BYTES, "no memory lies idle"


@pytest.mark.parametrize(
    ("limit_mib", "workers", "want"),
    [
        (2048, 8, Budget(8, 4 * 2**20)),
        (16, 8, Budget(8, 2**20)),
        (16, 1024, Budget(128, 64 * 2**10)),
        (16, 3, Budget(3, (16 * 2**20 // 6) // 4096 * 4096)),
    ],
)
def test_limits(limit_mib: int, workers: int, want: Budget) -> None:
    assert share_memory(limit_mib * 2**20, workers) == want


def test_something_is_always_left_to_work_with() -> None:
    assert share_memory(1, 8) == Budget(1, 64 * 2**10)
