"""Walks a remote `.ckpt` file in few rounds of requests: fetches the next headers before their positions are known.

An entry's position is known only once the one before it was read, so a plain walk waits for as many answers as there
are entries. Here one round fetches *windows* around all predicted positions of the next heads, more of them as long as
predictions hold. The walk parses the bytes that it finds, where it finds them: a wrong prediction only costs requests.
"""

from bisect import bisect_right
from collections.abc import Iterator

from reshard.core.files.remote_reads import START_BYTES, read_split
from reshard.core.files.repetition import Repetition
from reshard.core.storage.coalescing import coalesced, covering_range
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES
from reshard.core.tensor.slices import Extent

_HEAD_BYTES = 512
"""From a head's beginning on: usually more than precedes the contents."""
_MISSED_BYTES = 4 << 10
"""The same, for a head that was not predicted."""
_FIRST_SLACK_BYTES, _SLACK_BYTES = 128, 4
"""Before and after a predicted head, and more for each entry in between: names grow by a digit."""

_MIN_AHEAD, _MAX_AHEAD = 8, 2048
"""Heads fetched in one round. A request takes about 1 ms of a core, so wrong ones are not free."""
_MAX_BYTES = 16 << 20
"""In one round."""

_SMALL_ENTRIES, _SMALL_ENTRY_BYTES = 8, 128 << 10
"""If so many entries are so small on average, everything is read, in chunks of doubling size."""
_CHUNK_BYTES = 128 << 10


class Lookahead:
    """The windows of one forward walk over a file's bytes up to `stop`."""

    def __init__(self, file: SourceFile, stop: int) -> None:
        self._file = file
        self._stop = stop
        self._entries = Repetition()
        self._next = 0  # end of the last entry passed
        self._windows: list[tuple[int, bytes]] = []
        self._ahead = _MIN_AHEAD
        self._asked_at = 0  # entries passed when heads were last fetched
        self._chunk_bytes = _CHUNK_BYTES

    def passed(self, content_bytes: int, stop: int) -> None:
        """Record an entry that ends at `stop`, where the next one begins."""
        self._entries.add(content_bytes, stop - self._next)
        self._next = stop

    def window(self, offset: int, length: int) -> tuple[int, bytes]:
        """Return a window with the `length` bytes at `offset`, or those up to the end: its offset and its bytes."""
        length = min(length, self._stop - offset)
        if length <= 0:
            return offset, b""
        return self._window_with(offset, length) or self._fetch(offset, length)

    def contents(self, offset: int, length: int) -> bytes:
        """Return bytes of an entry that was passed; the last one's are often at hand."""
        known = self._window_with(offset, length)
        if known is None:
            return read_bytes(self._file, offset, length)
        start, window = known
        return window[offset - start :][:length]

    def _window_with(self, offset: int, length: int) -> tuple[int, bytes] | None:
        before = bisect_right(self._windows, offset, key=lambda window: window[0])
        for start, window in reversed(self._windows[:before]):
            if offset + length <= start + len(window):
                return start, window
        return None

    def _fetch(self, offset: int, length: int) -> tuple[int, bytes]:
        ranges = self._ranges(self._wanted(offset, length))
        fetched = [(start, window) for (start, _), window in zip(ranges, read_split(self._file, ranges), strict=True)]
        kept = [(start, window) for start, window in self._windows if start + len(window) >= self._next]
        self._windows = sorted(kept + fetched, key=lambda window: window[0])
        return fetched[0]  # the window for `offset`: no other range begins before it

    def _ranges(self, wanted: list[Extent]) -> list[tuple[int, int]]:
        """Coalesce the wanted extents into few requests, from the first on, within the limit of a round."""
        ranges: list[tuple[int, int]] = []
        room = _MAX_BYTES
        for group in coalesced(wanted, gap_bytes=GAP_WORTH_READING_BYTES, max_bytes=_MAX_BYTES):
            start, length = covering_range(group)
            room -= length
            if ranges and room < 0:
                break
            ranges.append((start, length))
        return ranges

    def _wanted(self, offset: int, length: int) -> list[Extent]:
        """List the extents to fetch: first the `length` bytes at `offset` and some more, then those predicted."""
        if not self._entries:
            return [self._extent(offset, offset + max(length, START_BYTES))]
        if self._entries.mean_bytes(_SMALL_ENTRIES) <= _SMALL_ENTRY_BYTES:
            self._chunk_bytes = min(2 * self._chunk_bytes, _MAX_BYTES)
            return [self._extent(offset, offset + max(length, self._chunk_bytes))]
        self._chunk_bytes = _CHUNK_BYTES
        return [self._extent(offset, offset + max(length, _MISSED_BYTES)), *self._predicted(offset)]

    def _predicted(self, offset: int) -> Iterator[Extent]:
        """Yield windows around the next heads after `offset`, as predicted."""
        passed = len(self._entries) - self._asked_at
        self._asked_at = len(self._entries)
        right = 2 * passed >= self._ahead
        self._ahead = min(3 * self._ahead, _MAX_AHEAD) if right else _MIN_AHEAD
        for guess in self._entries.guesses(self._ahead, alternatives=not right):
            head, slack = self._next, _FIRST_SLACK_BYTES
            for length in guess:
                head += length
                slack += _SLACK_BYTES
                if head >= self._stop:
                    break
                if head >= offset:
                    yield self._extent(max(offset, head - slack), head + slack + _HEAD_BYTES)

    def _extent(self, start: int, stop: int) -> Extent:
        return Extent(start, min(stop, self._stop) - start)
