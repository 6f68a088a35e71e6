"""Which reads are made as one."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reshard.core.storage.coalescing import coalesced


@dataclass(frozen=True)
class Piece:
    offset: int
    length: int
    number: int = 0

    @property
    def stop(self) -> int:
        return self.offset + self.length


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    drawn = draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=30))
    return [Piece(offset, length, number) for number, (offset, length) in enumerate(drawn)]


@given(pieces(), st.integers(0, 30), st.integers(1, 120))
def test_groups(ranges: list[Piece], gap_bytes: int, max_bytes: int) -> None:
    groups = list(coalesced(ranges, gap_bytes=gap_bytes, max_bytes=max_bytes))
    flat = [piece for group in groups for piece in group]
    assert sorted(flat, key=lambda piece: piece.number) == ranges, "each is in exactly one group"
    assert [piece.offset for piece in flat] == sorted(piece.offset for piece in ranges)
    for group in groups:
        assert group
        size = max(piece.stop for piece in group) - group[0].offset
        assert size <= max_bytes or len(group) == 1
        covered = group[0].stop
        for piece in group[1:]:
            assert piece.offset - covered <= gap_bytes
            covered = max(covered, piece.stop)
    for group, following in pairwise(groups):
        stop = max(piece.stop for piece in group)
        joined = max(stop, overlapping_stop(following)) - group[0].offset
        assert following[0].offset - stop > gap_bytes or joined > max_bytes, "no more reads than needed"


def overlapping_stop(group: list[Piece]) -> int:
    """Where the first pieces of a group, as far as each overlaps those before it, end."""
    stop = group[0].stop
    for piece in group[1:]:
        if piece.offset >= stop:
            break
        stop = max(stop, piece.stop)
    return stop


def test_what_overlaps_is_not_torn_apart() -> None:
    ranges = [Piece(0, 60), Piece(60, 55), Piece(62, 55), Piece(70, 55)]
    assert list(coalesced(ranges, gap_bytes=10, max_bytes=120)) == [ranges[:1], ranges[1:]]
    assert list(coalesced(ranges, gap_bytes=10, max_bytes=60)) == [ranges[:1], ranges[1:3], ranges[3:]]


def test_neighbors_join_up_to_the_gap() -> None:
    ranges = [Piece(120, 10), Piece(0, 10), Piece(20, 10)]
    assert list(coalesced(ranges, gap_bytes=10, max_bytes=1000)) == [[Piece(0, 10), Piece(20, 10)], [Piece(120, 10)]]
    assert len(list(coalesced(ranges, gap_bytes=9, max_bytes=1000))) == 3
    assert len(list(coalesced(ranges, gap_bytes=90, max_bytes=130))) == 1
    assert len(list(coalesced(ranges, gap_bytes=90, max_bytes=129))) == 2


def test_long_ranges_stay_alone() -> None:
    ranges = [Piece(0, 10), Piece(10, 500), Piece(20, 10), Piece(510, 10)]
    groups = list(coalesced(ranges, gap_bytes=1000, max_bytes=100))
    assert groups == [[ranges[0]], [ranges[1]], [ranges[2]], [ranges[3]]]


def test_nothing() -> None:
    assert list(coalesced([], gap_bytes=1, max_bytes=1)) == []
