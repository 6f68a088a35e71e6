"""Block readers: fill blocks of target files from source files, with few and large reads.

Read ranges that overlap or lie close together in a file are read at once, for any target rank of the group: bytes that
several ranks need are read once. Local reads follow one another, through a scratch buffer; a long verbatim range is
read straight into its block. From a remote storage the reads of a step are requested concurrently.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Protocol

import numpy as np

from reshard.core.errors import ConversionError
from reshard.core.files.remote_index.templates import header_mismatch
from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.storage.coalescing import coalesced, covering_range
from reshard.core.storage.reading import read_parts
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES as REMOTE_GAP_WORTH_READING_BYTES
from reshard.core.storage.transfers import submitted
from reshard.core.tensor.slices import Extent
from reshard.core.transfer.fetches import ChangeOf, FactorsOf, Fetch, FetchPlanner, RankBlock
from reshard.core.transfer.read_ranges import ReadLimits
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles

GAP_WORTH_READING_BYTES = 64 * 2**10
"""Reading and dropping this much costs less than another read call (about 15 µs at 5 GB/s)."""
MAX_REQUEST_BYTES = 8 * 2**20
"""Larger ones gain little: 1.1 GiB/s with 8 MiB, 0.9 with 4 MiB, 0.5 with 1 MiB, from a server on the same machine."""

_HEADS_BYTES = 64 * 2**10
"""Room in a request for the bytes checked before contents."""


class BlockReader(Protocol):
    """Fills the blocks of some target ranks from source files; for one thread."""

    @property
    def read_bytes(self) -> int:
        """Bytes read from the source."""

    def fill(self, blocks: Sequence[RankBlock]) -> None:
        """Read the contents of all chunks of the blocks.

        Raises:
            CatalogError: a source file is not the one that was planned with.
            CheckpointError: a source file ends too early.
            StorageError: a source file cannot be read.
        """


class LocalBlockReader:
    """Fills blocks from files on this machine; `ranks` as in `FetchPlanner`."""

    def __init__(
        self,
        plan: ConversionPlan,
        ranks: Sequence[Mapping[str, ParameterPlan]],
        sources: LocalFiles,
        scratch_bytes: int,
        factors_of: FactorsOf | None = None,
        change_of: ChangeOf | None = None,
    ) -> None:
        self._scratch = np.empty(scratch_bytes, dtype=np.uint8).data
        limits = ReadLimits(scratch_bytes, GAP_WORTH_READING_BYTES)
        self._planner = FetchPlanner(plan, ranks, limits, factors_of, change_of)
        self._sources = sources
        self.read_bytes = 0

    def fill(self, blocks: Sequence[RankBlock]) -> None:  # noqa: D102
        by_source: dict[int, list[Fetch]] = {}
        in_place: dict[tuple[int, tuple[Extent, ...]], memoryview] = {}
        for fetch in self._planner.fetches(blocks):
            if not _is_read_alone(fetch):
                by_source.setdefault(fetch.source_rank, []).append(fetch)
                continue
            place = fetch.source_rank, fetch.extents
            if place in in_place:
                fetch.deliver(in_place[place])
            else:
                self._read_alone(fetch)
                if (destination := fetch.destination) is not None:
                    in_place[place] = destination
        for source_rank, fetches in by_source.items():
            for group in coalesced(fetches, gap_bytes=GAP_WORTH_READING_BYTES, max_bytes=len(self._scratch)):
                self._read_together(source_rank, group)

    def _read_alone(self, fetch: Fetch) -> None:
        """Read a range, straight into the block if it is verbatim."""
        destination = fetch.destination
        run = self._scratch[: fetch.length] if destination is None else destination
        source = self._sources.open(fetch.source_rank)
        position = 0
        for extent in fetch.extents:
            source.read_into(extent.offset, run[position : position + extent.length])
            position += extent.length
        self.read_bytes += fetch.length
        if destination is None:
            fetch.deliver(run)

    def _read_together(self, source_rank: int, group: Sequence[Fetch]) -> None:
        if len(group) == 1:
            self._read_alone(group[0])
            return
        start, length = covering_range(group)
        run = self._scratch[:length]
        self._sources.open(source_rank).read_into(start, run)
        self.read_bytes += length
        for fetch in group:
            first = fetch.offset - start
            fetch.deliver(run[first : first + fetch.length])


def _is_read_alone(fetch: Fetch) -> bool:
    """True if joining a local fetch with others is impossible, or would cost more than it saves."""
    return len(fetch.extents) > 1 or (fetch.length > GAP_WORTH_READING_BYTES and fetch.destination is not None)


class RemoteBlockReader:
    """Fills blocks from files on a remote storage; `ranks` as in `FetchPlanner`.

    At most `in_flight_bytes` are requested at a time, or a single request; answers take twice as much memory while they
    are put together. Requests are small enough for `at_once` of them to be in flight.
    """

    def __init__(
        self,
        plan: ConversionPlan,
        ranks: Sequence[Mapping[str, ParameterPlan]],
        sources: RemoteFiles,
        in_flight_bytes: int,
        at_once: int = 1,
        factors_of: FactorsOf | None = None,
        change_of: ChangeOf | None = None,
    ) -> None:
        self._records = plan.inputs.catalog.records
        self._request_bytes = min(MAX_REQUEST_BYTES, in_flight_bytes // at_once)
        self._in_flight_bytes = in_flight_bytes
        limits = ReadLimits(self._request_bytes, REMOTE_GAP_WORTH_READING_BYTES)
        self._planner = FetchPlanner(plan, ranks, limits, factors_of, change_of)
        self._sources = sources
        self.read_bytes = 0

    def fill(self, blocks: Sequence[RankBlock]) -> None:  # noqa: D102
        wanted: dict[int, list[_Wanted]] = {}
        split: list[Fetch] = []
        for fetch in self._planner.fetches(blocks):
            here = wanted.setdefault(fetch.source_rank, [])
            here += self._head_checks(fetch.source_rank, fetch.source_name)
            if len(fetch.extents) > 1:
                split.append(fetch)
            else:
                here.append(fetch)
        requests = self._requests(wanted)
        self.read_bytes += sum(request.length for request in requests) + sum(fetch.length for fetch in split)
        for fetch in split:
            self._read_split(fetch)
        self._read_all(requests)

    def _requests(self, wanted: "Mapping[int, Sequence[_Wanted]]") -> "list[_Request]":
        limit_bytes = self._request_bytes + _HEADS_BYTES
        return [
            _Request(source_rank, group, *covering_range(group))
            for source_rank, items in wanted.items()
            for group in coalesced(items, gap_bytes=REMOTE_GAP_WORTH_READING_BYTES, max_bytes=limit_bytes)
        ]

    def _read_split(self, fetch: Fetch) -> None:
        """Read a range that crosses a border between extents."""
        extents = [(extent.offset, extent.length) for extent in fetch.extents]
        answers = self._sources.open(fetch.source_rank).read_many(extents)
        fetch.deliver(memoryview(b"".join(answers)))

    def _read_all(self, requests: "Sequence[_Request]") -> None:
        """Make requests concurrently, within the limit of bytes in flight."""
        in_flight: deque[tuple[Future[None], int]] = deque()
        requested_bytes = 0
        try:
            for request in requests:
                while in_flight and requested_bytes + request.length > self._in_flight_bytes:
                    future, answered_bytes = in_flight.popleft()
                    requested_bytes -= answered_bytes
                    future.result()
                in_flight.append((submitted(self._read, request), request.length))
                requested_bytes += request.length
            for future, _ in in_flight:
                future.result()
        finally:
            for future, _ in in_flight:
                future.cancel()
            wait([future for future, _ in in_flight])  # none may write into a block that is reused by then

    def _read(self, request: "_Request") -> None:
        source = self._sources.open(request.source_rank)
        parts = _parts(request)
        if parts is not None and read_parts(source, request.start, [part.buffer for part in parts]):
            for part in parts:
                if part.item is not None and part.item.destination is None:
                    part.item.deliver(part.buffer)
            return
        run = np.empty(request.length, np.uint8).data
        source.read_into(request.start, run)
        for item in request.items:
            first = item.offset - request.start
            item.deliver(run[first : first + item.length])

    def _head_checks(self, source_rank: int, name: str) -> "list[_HeadCheck]":
        record = self._records[source_rank]
        entry = record.index.entries[name]
        return [
            _HeadCheck(head.offset, head.data, source_rank, record.location, name)
            for head in self._sources.unchecked_heads(record, entry)
        ]


class _Request(Record):
    """Items of one source file, and the byte range that covers them."""

    source_rank: int
    items: "Sequence[_Wanted]"
    start: int
    length: int


class _HeadCheck(Record):
    """Bytes expected before a parameter's contents, in a file whose headers were assumed to equal another file's."""

    offset: int
    head: bytes
    source_rank: int
    file: str
    name: str

    @property
    def length(self) -> int:
        return len(self.head)

    @property
    def destination(self) -> None:
        """None: it is compared."""

    def deliver(self, run: memoryview) -> None:
        if run != self.head:
            raise header_mismatch(self.source_rank, self.file, self.name, self.offset)


_Wanted = Fetch | _HeadCheck
"""Bytes of a source file to be delivered."""


class _Part(Record):
    """The buffer for the bytes of an item of a request, or of a gap before one."""

    item: _Wanted | None
    buffer: memoryview


def _parts(request: _Request) -> list[_Part] | None:
    """The items of a request, and the gaps between them, each with the buffer for its bytes; None if items overlap.

    Verbatim bytes arrive in their blocks: copying them there takes as long as receiving them.
    """
    parts: list[_Part] = []
    position = request.start
    for item in request.items:
        if item.offset < position:
            return None
        if item.offset > position:
            parts.append(_Part(None, _new_buffer(item.offset - position)))
        buffer = _new_buffer(item.length) if item.destination is None else item.destination
        if len(buffer) != item.length:  # all behind it would be shifted
            raise ConversionError(
                f"rank {request.source_rank}: {item.length} bytes at {item.offset} have a place of {len(buffer)}. "
                "This is a bug in reshard"
            )
        parts.append(_Part(item, buffer))
        position = item.offset + item.length
    return parts


def _new_buffer(length: int) -> memoryview:
    return np.empty(length, np.uint8).data
