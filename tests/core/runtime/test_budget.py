"""How memory and file descriptors are shared out."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.options.fields import SMALLEST_MEMORY_LIMIT_BYTES
from reshard.core.runtime.budget import (
    MAX_BUFFER_BYTES,
    MAX_GROUP_RANKS,
    MAX_LONE_BLOCK_BYTES,
    MAX_REMOTE_BLOCK_BYTES,
    MIN_PART_BYTES,
    PART_BYTES,
    Budget,
    build_budget,
    open_files_limit,
    upload_part_bytes,
)

MIB = 2**20
MOST_PARTS_OF_S3 = 10_000


@given(
    st.integers(SMALLEST_MEMORY_LIMIT_BYTES, 2**45),
    st.integers(256, 2**20),
    st.integers(1, 1024),
    st.integers(1, MAX_GROUP_RANKS),
    st.integers(1, 4096),
)
def test_any_limit_that_may_be_asked_for_is_kept(
    limit_bytes: int, files: int, workers: int, count: int, source_files: int
) -> None:
    budget = build_budget(limit_bytes, files, workers, source_files=source_files)
    assert 1 <= budget.workers <= workers
    count = min(count, budget.max_group_ranks)
    buffers = budget.group_buffers(count)
    assert budget.workers * buffers.total_bytes <= limit_bytes
    wide = budget.group_buffers(count, wide=True)
    assert budget.workers * wide.total_bytes <= limit_bytes
    assert wide.block_bytes <= wide.wide_block_bytes
    assert budget.workers * (count + buffers.sources_open) <= files
    most_bytes = MAX_LONE_BLOCK_BYTES if count == 1 else MAX_BUFFER_BYTES
    for size, most in ((buffers.block_bytes, most_bytes), (buffers.scratch_bytes, MAX_BUFFER_BYTES)):
        assert 64 * 2**10 <= size <= most
        assert size % 4096 == 0


@given(
    st.integers(SMALLEST_MEMORY_LIMIT_BYTES, 2**45),
    st.integers(1, 1024),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**42),
    st.integers(1, 1024),
)
def test_any_limit_is_kept_with_object_stores(
    limit_bytes: int,
    workers: int,
    remote_source: bool,
    remote_target: bool,
    file_bytes: int,
    count: int,
) -> None:
    part_bytes = upload_part_bytes(limit_bytes, file_bytes) if remote_target else 0
    budget = build_budget(limit_bytes, 2**20, workers, part_bytes=part_bytes, remote_source=remote_source)
    count = min(count, budget.max_group_ranks)
    # from a remote storage several workers prefetch for one group; else each may have its own
    prefetch = budget.max_prefetch if remote_source and count > 1 else 1
    buffers, wide = (budget.group_buffers(count, prefetch, wide=wide) for wide in (False, True))
    total = budget.workers // prefetch * max(buffers.total_bytes, wide.total_bytes)
    # nothing can be sent to S3 in smaller parts, and one is filled while another is sent
    assert total <= max(limit_bytes, 2 * part_bytes + 3 * 64 * 2**10)
    assert buffers.block_bytes <= (MAX_REMOTE_BLOCK_BYTES if remote_source else MAX_LONE_BLOCK_BYTES)
    assert prefetch * wide.block_bytes <= wide.wide_block_bytes
    if remote_target:
        assert file_bytes <= MOST_PARTS_OF_S3 * part_bytes


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
    budget = build_budget(limit_bytes, 2**20, workers)
    buffers = budget.group_buffers(count)
    assert (budget.workers, buffers.scratch_bytes, buffers.block_bytes, budget.workers * buffers.total_bytes) == want


@pytest.mark.parametrize(("source_files", "block_bytes"), [(1, 4 * MIB), (32, 4 * MIB), (48, 6 * MIB), (1024, 8 * MIB)])
def test_a_rank_that_is_written_alone_has_longer_blocks_from_many_files(source_files: int, block_bytes: int) -> None:
    budget = build_budget(2048 * MIB, 2**20, 8, source_files=source_files)
    assert budget.group_buffers(1).block_bytes == block_bytes
    assert budget.group_buffers(2).block_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("limit_bytes", "part_bytes", "count", "prefetch", "want"),
    [
        (2048 * MIB, 0, 1, 2, (3, 8 * MIB)),
        (2048 * MIB, 0, 1, 1, (1, 8 * MIB)),
        (2048 * MIB, 0, 2, 8, (8, 8 * MIB)),
        (2048 * MIB, 0, 4, 8, (8, 4 * MIB)),
        (2048 * MIB, PART_BYTES, 1, 2, (2, 8 * MIB)),
        (128 * MIB, 0, 1, 2, (2, 16 * MIB // 3 // 4096 * 4096)),
    ],
)
def test_a_remote_file_alone_has_more_readers_than_workers(
    limit_bytes: int, part_bytes: int, count: int, prefetch: int, want: tuple[int, int]
) -> None:
    budget = build_budget(limit_bytes, 2**20, 8, part_bytes=part_bytes, remote_source=True)
    buffers = budget.group_buffers(count, prefetch)
    assert (buffers.readers, buffers.block_bytes) == want
    assert buffers.total_bytes <= prefetch * budget.worker_bytes


def test_little_memory_lets_fewer_ranks_share() -> None:
    assert build_budget(2048 * MIB, 2**20, 8).max_group_ranks == MAX_GROUP_RANKS
    assert build_budget(16 * MIB, 2**20, 8).max_group_ranks == 16
    assert build_budget(16 * MIB, 2**20, 1024).max_group_ranks == 1


@pytest.mark.parametrize(
    ("files", "workers", "want"), [(1024, 2, (2, 32, 64)), (1024, 16, (16, 28, 28)), (256, 100, (64, 1, 1))]
)
def test_few_descriptors_let_fewer_ranks_share_and_fewer_sources_be_open(
    files: int, workers: int, want: tuple[int, int, int]
) -> None:
    budget = build_budget(2**40, files, workers)
    assert (budget.workers, budget.max_group_ranks, budget.group_buffers(budget.max_group_ranks).sources_open) == want


def test_64_ranks_share_reads_from_one_object_store_to_another_within_the_default_limit() -> None:
    budget = build_budget(2048 * MIB, 2**20, 8, part_bytes=PART_BYTES, remote_source=True)
    assert budget.max_group_ranks >= 64


@pytest.mark.parametrize(
    ("limit_bytes", "file_bytes", "want"),
    [
        (2048 * MIB, 0, PART_BYTES),
        (2048 * MIB, 70 * 2**30, PART_BYTES),
        (2048 * MIB, 500 * 2**30, 57 * MIB),
        (16 * MIB, 0, MIN_PART_BYTES),
    ],
)
def test_parts_are_large_enough_for_their_number_to_be_allowed(limit_bytes: int, file_bytes: int, want: int) -> None:
    assert upload_part_bytes(limit_bytes, file_bytes) == want


def test_the_limit_on_descriptors_is_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_files_limit() == min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert open_files_limit() == 2**20


def test_something_is_always_left_to_work_with() -> None:
    assert build_budget(1, 3, 8) == Budget(1, 128 * 2**10, 2)
