"""How memory and file descriptors are shared out."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.budget import LARGEST_BUFFER_BYTES, MOST_BLOCKS_TOGETHER, Budget, open_files_limit, share_out
from core.request import SMALLEST_MEMORY_LIMIT_BYTES

MIB = 2**20


@given(
    st.integers(SMALLEST_MEMORY_LIMIT_BYTES, 2**45),
    st.integers(256, 2**20),
    st.integers(1, 1024),
    st.integers(1, MOST_BLOCKS_TOGETHER),
)
def test_any_limit_that_may_be_asked_for_is_kept(limit_bytes: int, files: int, workers: int, count: int) -> None:
    budget = share_out(limit_bytes, files, workers)
    assert 1 <= budget.workers <= workers
    count = min(count, budget.most_blocks)
    assert budget.peak_bytes(count) <= limit_bytes
    assert budget.workers * (count + budget.sources_open(count)) <= files
    for size in (budget.block_bytes(count), budget.scratch_bytes):
        assert 64 * 2**10 <= size <= LARGEST_BUFFER_BYTES
        assert size % 4096 == 0


@pytest.mark.parametrize(
    ("limit_bytes", "workers", "count", "want"),
    [
        (2048 * MIB, 8, 1, (8, 4 * MIB, 4 * MIB, 64 * MIB)),
        (2048 * MIB, 8, 4, (8, 4 * MIB, 4 * MIB, 160 * MIB)),
        (2048 * MIB, 8, 32, (8, 4 * MIB, MIB, 288 * MIB)),
        (16 * MIB, 8, 1, (8, MIB, MIB, 16 * MIB)),
        (16 * MIB, 8, 4, (8, MIB, MIB // 4, 16 * MIB)),
        (16 * MIB, 1024, 1, (128, 64 * 2**10, 64 * 2**10, 16 * MIB)),
        (16 * MIB, 3, 1, (3, 682 * 4096, 683 * 4096, 3 * 1365 * 4096)),
    ],
)
def test_limits(limit_bytes: int, workers: int, count: int, want: tuple[int, int, int, int]) -> None:
    budget = share_out(limit_bytes, 2**20, workers)
    found = budget.workers, budget.scratch_bytes, budget.block_bytes(count), budget.peak_bytes(count)
    assert found == want


def test_little_memory_lets_fewer_ranks_share() -> None:
    assert share_out(2048 * MIB, 2**20, 8).most_blocks == MOST_BLOCKS_TOGETHER
    assert share_out(16 * MIB, 2**20, 8).most_blocks == 16
    assert share_out(16 * MIB, 2**20, 1024).most_blocks == 1


@pytest.mark.parametrize(
    ("files", "workers", "want"), [(1024, 2, (2, 32, 64)), (1024, 16, (16, 28, 28)), (256, 100, (64, 1, 1))]
)
def test_few_descriptors_let_fewer_ranks_share_and_fewer_sources_be_open(
    files: int, workers: int, want: tuple[int, int, int]
) -> None:
    budget = share_out(2**40, files, workers)
    assert (budget.workers, budget.most_blocks, budget.sources_open(budget.most_blocks)) == want


def test_the_limit_on_descriptors_is_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_files_limit() == min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert open_files_limit() == 2**20


def test_few_ranks_share_while_their_files_are_uploaded() -> None:
    """Each file being written to an object store takes 50 MiB until they are sent."""
    budget = share_out(2048 * MIB, 2**20, 8, uploads=True)
    assert (budget.most_blocks, budget.block_bytes(5)) == (5, 4 * MIB)
    assert share_out(16 * MIB, 2**20, 8, uploads=True).most_blocks == 1


def test_something_is_always_left_to_work_with() -> None:
    assert share_out(1, 3, 8) == Budget(1, 128 * 2**10, 2)
