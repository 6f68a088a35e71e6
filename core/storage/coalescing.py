"""Which reads of a file are better made as one. Pure: nothing is read here."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar


class ByteRange(Protocol):
    """Bytes `offset` to `offset + length` of a file."""

    @property
    def offset(self) -> int:
        """First byte in the file."""

    @property
    def length(self) -> int:
        """Number of bytes."""


Range = TypeVar("Range", bound=ByteRange)


def coalesced(ranges: Sequence[Range], *, gap_bytes: int, most_bytes: int) -> Iterator[list[Range]]:
    """Groups ranges of one file, each to be read at once, in ascending order of their offsets.

    Neighbours join while at most `gap_bytes` lie between them and the whole read stays within `most_bytes`; ranges may
    overlap. A range longer than `most_bytes` stays alone.
    """
    group: list[Range] = []
    start = stop = 0
    for item in sorted(ranges, key=lambda item: item.offset):
        item_stop = item.offset + item.length
        if group and item.offset - stop <= gap_bytes and max(stop, item_stop) - start <= most_bytes:
            group.append(item)
            stop = max(stop, item_stop)
            continue
        if group:
            yield group
        group, start, stop = [item], item.offset, item_stop
    if group:
        yield group
