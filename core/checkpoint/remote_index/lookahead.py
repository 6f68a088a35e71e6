"""A walk over a remote `.ckpt` file in few rounds of requests: what comes next is asked for before it is known.

Where an entry begins is known once the one before it was read, so a plain walk waits for as many answers as there are
entries. Here *windows* around all places where the next heads are guessed to be are asked for at once, the more the
longer guesses hold. The walk parses what stands in the file, where it stands: a wrong guess costs requests, no more.
"""

from bisect import bisect_right
from collections.abc import Iterator

from reshard.core.checkpoint.remote_index.repetition import Repetition
from reshard.core.checkpoint.remote_reads import START_BYTES, read_split
from reshard.core.storage.coalescing import coalesced, covering_range
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES
from reshard.core.tensor.slices import Extent

_HEAD_BYTES = 512
"""From a head's beginning on: more than what stands before contents takes, as a rule."""
_MISSED_BYTES = 4 << 10
"""The same, of a head that nobody foresaw."""
_FIRST_SLACK_BYTES, _SLACK_BYTES = 128, 4
"""Before and after a head that is foreseen, and more for each entry on the way there: names grow by a digit."""

_FEWEST_AHEAD, _MOST_AHEAD = 8, 2048
"""Heads that are asked for in one round. A request takes about 1 ms of a core, so wrong ones are not free."""
_MOST_BYTES = 16 << 20
"""In one round."""

_SMALL_ENTRIES, _SMALL_ENTRY_BYTES = 8, 128 << 10
"""Where so many entries are so small on average, all is read, in chunks that double."""
_CHUNK_BYTES = 128 << 10


class Lookahead:
    """The windows of one forward walk over a file's bytes up to `stop`."""

    def __init__(self, file: SourceFile, stop: int) -> None:
        self._file = file
        self._stop = stop
        self._entries = Repetition()
        self._next = 0  # where the last entry that was passed ends
        self._windows: list[tuple[int, bytes]] = []
        self._ahead = _FEWEST_AHEAD
        self._asked_at = 0  # entries that had been passed when heads were last asked for
        self._chunk_bytes = _CHUNK_BYTES

    def passed(self, content_bytes: int, stop: int) -> None:
        """Takes note of an entry that ends at `stop`, where the next one begins."""
        self._entries.add(content_bytes, stop - self._next)
        self._next = stop

    def window(self, offset: int, length: int) -> tuple[int, bytes]:
        """A window that holds the `length` bytes at `offset`, as far as there are so many: where it begins, its bytes.

        Raises:
            CheckpointError: the file ends before its size.
            StorageError: it cannot be read.
        """
        length = min(length, self._stop - offset)
        if length <= 0:
            return offset, b""
        return self._held(offset, length) or self._fetched(offset, length)

    def contents(self, offset: int, length: int) -> bytes:
        """Bytes of an entry that was passed; the last one's are often held.

        Raises:
            CheckpointError: the file ends before its size.
            StorageError: it cannot be read.
        """
        held = self._held(offset, length)
        if held is None:
            return read_bytes(self._file, offset, length)
        start, window = held
        return window[offset - start :][:length]

    def _held(self, offset: int, length: int) -> tuple[int, bytes] | None:
        before = bisect_right(self._windows, offset, key=lambda window: window[0])
        for start, window in reversed(self._windows[:before]):
            if offset + length <= start + len(window):
                return start, window
        return None

    def _fetched(self, offset: int, length: int) -> tuple[int, bytes]:
        ranges = self._ranges(self._wanted(offset, length))
        fetched = [(start, window) for (start, _), window in zip(ranges, read_split(self._file, ranges), strict=True)]
        kept = [(start, window) for start, window in self._windows if start + len(window) >= self._next]
        self._windows = sorted(kept + fetched, key=lambda window: window[0])
        return fetched[0]  # which nothing that is wanted comes before

    def _ranges(self, wanted: list[Extent]) -> list[tuple[int, int]]:
        """What is wanted, by few requests, from the first on, as far as there is room."""
        ranges: list[tuple[int, int]] = []
        room = _MOST_BYTES
        for group in coalesced(wanted, gap_bytes=GAP_WORTH_READING_BYTES, max_bytes=_MOST_BYTES):
            start, length = covering_range(group)
            room -= length
            if ranges and room < 0:
                break
            ranges.append((start, length))
        return ranges

    def _wanted(self, offset: int, length: int) -> list[Extent]:
        """What to ask for: first the `length` bytes at `offset` and some more, then what may be needed after them."""
        if not self._entries:
            return [self._extent(offset, offset + max(length, START_BYTES))]
        if self._entries.mean_bytes(_SMALL_ENTRIES) <= _SMALL_ENTRY_BYTES:
            self._chunk_bytes = min(2 * self._chunk_bytes, _MOST_BYTES)
            return [self._extent(offset, offset + max(length, self._chunk_bytes))]
        self._chunk_bytes = _CHUNK_BYTES
        return [self._extent(offset, offset + max(length, _MISSED_BYTES)), *self._foreseen(offset)]

    def _foreseen(self, offset: int) -> Iterator[Extent]:
        """Windows around the next heads, where guesses put them after `offset`."""
        passed = len(self._entries) - self._asked_at
        self._asked_at = len(self._entries)
        right = 2 * passed >= self._ahead
        self._ahead = min(2 * self._ahead, _MOST_AHEAD) if right else _FEWEST_AHEAD
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
