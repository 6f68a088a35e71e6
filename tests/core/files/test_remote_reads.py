from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files import remote_reads
from reshard.core.files.memory_file import MemoryFile
from reshard.core.files.remote_reads import PrefetchedEnds, read_ahead, read_coalesced, read_in_blocks, read_split
from reshard.core.storage.transfers import submitted
from tests.support.remote_file import RemoteFile

KIB, MIB = 2**10, 2**20


def remote(size_bytes: int) -> RemoteFile:
    return RemoteFile([], size_bytes)


def test_ranges_that_are_near_share_a_request() -> None:
    file = remote(100 * MIB)
    ranges = [(50 * MIB, 10), (0, 100), (100 * KIB, 5), (50 * MIB + 5, 20), (7, 0)]
    found = read_coalesced(file, ranges)
    assert file.rounds == [[(0, 100 * KIB + 5), (50 * MIB, 25)]]
    assert found == remote(100 * MIB).read_many(ranges)


def test_long_ranges_take_several_requests() -> None:
    file = remote(100 * MIB)
    ranges = [(3, 9 * MIB), (50 * MIB, 0), (60 * MIB, 4 * MIB)]
    found = read_split(file, ranges)
    assert file.rounds == [
        [(3, 4 * MIB), (4 * MIB + 3, 4 * MIB), (8 * MIB + 3, MIB), (60 * MIB, 4 * MIB)],
    ]
    assert found == remote(100 * MIB).read_many(ranges)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 90)), max_size=20),
    st.integers(1, 40),
    st.integers(0, 40),
    st.integers(1, 200),
)
def test_reading_ahead_gives_every_range_in_order(
    ranges: list[tuple[int, int]], request_bytes: int, gap_bytes: int, under_way_bytes: int
) -> None:
    file = remote(600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_reads, "REQUEST_BYTES", request_bytes)
        patch.setattr(remote_reads, "GAP_WORTH_READING_BYTES", gap_bytes)
        patch.setattr(remote_reads, "_MAX_BYTES_IN_FLIGHT", under_way_bytes)
        found = list(read_ahead(file, ranges))
    assert [number for number, _ in found] == sorted(number for number, _ in found)
    assert all(0 < len(data) <= request_bytes for _, data in found)
    joined = [b"".join(data for number, data in found if number == place) for place in range(len(ranges))]
    assert joined == remote(600).read_many(ranges)
    assert all(length <= request_bytes for [(_, length)] in file.rounds)


def test_so_much_is_under_way_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def noted(function: Callable[[Any], Any], item: Any) -> Any:
        asked.extend(item)
        return submitted(function, item)

    monkeypatch.setattr(remote_reads, "submitted", noted)
    file = remote(48 * MIB)
    under_way = [len(asked) - taken for taken, _ in enumerate(read_ahead(file, [(0, 48 * MIB)]))]
    assert under_way == [4] * 9 + [3, 2, 1]
    assert asked == [(start, 4 * MIB) for start in range(0, 48 * MIB, 4 * MIB)]


def test_an_error_comes_where_its_range_does() -> None:
    pieces = read_ahead(remote(10 * MIB), [(0, 5), (8 * MIB, 3 * MIB), (5 * MIB, 10)])
    assert len(next(pieces)[1]) == 5
    with pytest.raises(CheckpointError, match="beyond"):
        next(pieces)


class TestEnds:
    def test_both_are_read_in_one_round_and_then_known(self) -> None:
        file = remote(10 * MIB)
        ends = PrefetchedEnds(file)
        assert len(file.rounds) == 1
        buffer = memoryview(bytearray(17))
        ends.read_into(file.size_bytes - 17, buffer)
        assert [bytes(buffer)] == remote(10 * MIB).read_many([(file.size_bytes - 17, 17)])
        assert ends.read_many([(5, 100)]) == remote(10 * MIB).read_many([(5, 100)])
        assert len(file.rounds) == 1

    def test_what_is_not_known_is_asked_for_at_once(self) -> None:
        file = remote(10 * MIB)
        ranges = [(MIB, 10), (0, 10), (60 * KIB, 10 * KIB), (10 * MIB - 1, 1), (5, 0)]
        assert PrefetchedEnds(file).read_many(ranges) == remote(10 * MIB).read_many(ranges)
        assert file.rounds[1:] == [[(MIB, 10), (60 * KIB, 10 * KIB)]]

    @pytest.mark.parametrize("size_bytes", [0, 1, 63, 64, 64 * KIB, 64 * KIB + 1])
    def test_short_files(self, size_bytes: int) -> None:
        file = remote(size_bytes)
        ranges = [(0, size_bytes), (size_bytes // 2, 0)]
        assert PrefetchedEnds(file).read_many(ranges) == remote(size_bytes).read_many(ranges)

    def test_it_is_the_same_file(self) -> None:
        file = remote(5)
        ends = PrefetchedEnds(file)
        assert (ends.location, ends.size_bytes, ends.version) == (file.location, 5, file.version)


@pytest.mark.parametrize("file", [MemoryFile(bytes(range(100)), "file"), remote(100)], ids=["local", "remote"])
def test_blocks_of_ranges(file: MemoryFile | RemoteFile) -> None:
    ranges = [(50, 10), (0, 3), (7, 0), (98, 2)]
    found: dict[int, bytes] = {}
    for number, block in read_in_blocks(file, iter(ranges), block_bytes=4):
        assert file.location.store.is_near <= (len(block) <= 4)
        found[number] = found.get(number, b"") + bytes(block)
    expected = file.read_many(ranges)
    assert found == {number: expected[number] for number in (0, 1, 3)}
    assert list(found) == [0, 1, 3]
