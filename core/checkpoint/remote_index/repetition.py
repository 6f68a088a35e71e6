"""Predicts the lengths of a file's next entries from those before. Pure.

Layers have the same parameters, and an optimizer's moments the shapes of all weights: whatever followed the last
sequence of contents of these lengths is likely to follow again.
"""

from collections.abc import Iterator
from itertools import cycle, islice

_CONTEXTS = (32, 16, 8, 4, 2, 1)
"""Lengths of the sequences that are compared, longest first."""
_ALIKE = 2
"""Entries of a new length may come in threes: query, key and value."""


class Repetition:
    """The entries of a file so far: lengths of their contents, and of contents with heads."""

    def __init__(self) -> None:
        self._contents: list[int] = []
        self._entries: list[int] = []
        self._first: dict[int, int] = {}
        self._last: dict[tuple[int, ...], int] = {}  # sequence of lengths -> place of the last of them
        self._learned = 0  # entries recorded in these two

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
        self._learn_all_but_newest()
        newest = len(self) - 1
        first = self._first.get(self._contents[newest])
        if first is None:
            yield [self._entries[newest]] * min(count, _ALIKE)
            return
        # the last place, before the newest entry, that ends the longest sequence of the newest lengths
        last = next(self._last[context] for context in self._contexts(newest) if context in self._last)
        yield self._what_followed(last, count)
        if alternatives and first != last:
            # the first of several alike, as a layer's projections are, begins the next layer's row of them
            yield self._what_followed(first, count)

    def _learn_all_but_newest(self) -> None:
        for place in range(self._learned, len(self) - 1):
            self._first.setdefault(self._contents[place], place)
            for context in self._contexts(place):
                self._last[context] = place
        self._learned = len(self) - 1

    def _contexts(self, place: int) -> Iterator[tuple[int, ...]]:
        """Sequences of content lengths that end at a place, longest first."""
        return (tuple(self._contents[place + 1 - count : place + 1]) for count in _CONTEXTS if count <= place + 1)

    def _what_followed(self, earlier: int, count: int) -> list[int]:
        """Return the lengths of the entries after an earlier one up to the newest, repeated up to `count`."""
        newest = len(self) - 1
        longer = self._entries[newest] - self._entries[earlier]  # by its name, as the next ones usually are
        period = [length + longer for length in self._entries[earlier + 1 : newest]] + [self._entries[newest]]
        return list(islice(cycle(period), count))
