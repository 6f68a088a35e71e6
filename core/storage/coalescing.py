"""Joins byte ranges of a file that are better read at once. Pure: nothing is read here."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar


class ExtentLike(Protocol):
    """Bytes `offset` to `offset + length` of a file."""

    @property
    def offset(self) -> int:
        """First byte in the file."""

    @property
    def length(self) -> int:
        """Number of bytes."""


Range = TypeVar("Range", bound=ExtentLike)


def coalesced(ranges: Sequence[Range], *, gap_bytes: int, max_bytes: int) -> Iterator[list[Range]]:
    """Group ranges of one file, each group to be read at once, in ascending order of their offsets.

    Neighbors join while at most `gap_bytes` lie between them and the whole read stays within `max_bytes`. Overlapping
    ranges are separated only where they are too long together, because their common bytes are then read twice. A range
    longer than `max_bytes` stays alone.
    """
    group: list[Range] = []
    start = stop = border = 0  # items of the group from `border` on overlap one another
    for item in sorted(ranges, key=attrgetter("offset")):
        offset = item.offset
        item_stop = offset + item.length
        if group and offset - stop > gap_bytes:
            yield group
            group = []
        too_long = max(stop, item_stop) - start > max_bytes
        if group and border and offset < stop and too_long and item_stop - group[border].offset <= max_bytes:
            yield group[:border]
            group, start, border = group[border:], group[border].offset, 0
        if group and max(stop, item_stop) - start > max_bytes:
            yield group
            group = []
        if not group:
            start, stop, border = offset, item_stop, 0
        elif offset >= stop:
            border = len(group)
        group.append(item)
        stop = max(stop, item_stop)
    if group:
        yield group


def covering_range(ranges: Sequence[ExtentLike]) -> tuple[int, int]:
    """Offset and length of the shortest range that covers ranges given in ascending order of their offsets."""
    start = ranges[0].offset
    return start, max(item.offset + item.length for item in ranges) - start
