"""Predicts the lengths of a file's next entries from those before. Pure.

Layers have the same parameters, and an optimizer's moments the shapes of all weights: whatever followed the longest
sequence of contents of these lengths is likely to follow again.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

_ALIKE = 2
"""Entries of a new length may come in threes: query, key and value."""


class Repetition:
    """The entries of a file so far: lengths of their contents, and of contents with heads."""

    def __init__(self) -> None:
        self._contents: list[int] = []
        self._entries: list[int] = []

    def __len__(self) -> int:
        return len(self._contents)

    def add(self, content_bytes: int, entry_bytes: int) -> None:
        """Append the next entry."""
        self._contents.append(content_bytes)
        self._entries.append(entry_bytes)

    def mean_bytes(self, count: int) -> float:
        """Mean length of the last `count` entries; infinite while there are fewer."""
        return sum(self._entries[-count:]) / count if len(self) >= count else float("inf")

    def guesses(self, count: int, *, alternatives: bool) -> Iterator[list[int]]:
        """Yield predicted lengths of up to `count` entries; with `alternatives` several predictions, best first."""
        if not self._contents:
            return
        alike = _lengths_alike(self._contents[::-1])
        longest = max(alike, default=0)
        if not longest:
            yield [self._entries[-1]] * min(count, _ALIKE)
            return
        # the last place, before the newest entry, that ends the longest sequence of the newest lengths
        last = len(self) - 2 - alike.index(longest)
        yield self._what_followed(last, count)
        first = self._contents.index(self._contents[-1])
        if alternatives and first != last:
            # the first of several alike, as a layer's projections are, begins the next layer's row of them
            yield self._what_followed(first, count)

    def _what_followed(self, earlier: int, count: int) -> list[int]:
        """Return the lengths of the entries after an earlier one up to the newest, repeated up to `count`."""
        newest = len(self) - 1
        longer = self._entries[newest] - self._entries[earlier]  # by its name, as the next ones usually are
        period = [length + longer for length in self._entries[earlier + 1 : newest]] + [self._entries[newest]]
        return list(islice(cycle(period), count))


def _lengths_alike(values: Sequence[int]) -> list[int]:
    """Return for each value but the first how many from it on are the same as from the first on (the Z function)."""
    lengths: list[int] = []
    start = stop = 0  # of the stretch alike that reaches farthest
    for place in range(1, len(values)):
        length = min(lengths[place - start - 1], stop - place) if start < place < stop else 0
        while place + length < len(values) and values[length] == values[place + length]:
            length += 1
        if place + length > stop:
            start, stop = place, place + length
        lengths.append(length)
    return lengths
