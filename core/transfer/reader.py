"""Fills parts of target shards from source files, with few and large reads.

Spans that overlap or lie close together in a file are read at once, whichever target rank they are for: what several
ranks need is read once. On this machine reads follow one another, by way of a scratch buffer; a long span whose bytes
are wanted as they are goes straight to its place. From a remote storage all that blocks need is asked for at once.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from reshard.core.checkpoint.model import Extent
from reshard.core.checkpoint.remote_index.templates import header_mismatch
from reshard.core.plan.plan import ConversionPlan, ParameterPlan, ReadItem
from reshard.core.storage.coalescing import coalesced, stretch_of
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES as REMOTE_GAP_WORTH_READING_BYTES
from reshard.core.storage.transfers import submitted
from reshard.core.tensor.casting import Overflow
from reshard.core.transfer.file_blocks import Part
from reshard.core.transfer.read_ranges import ReadLimits, SourceShard, Span, part_spans, source_shard
from reshard.core.transfer.scatter import place_values
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles, SourceFiles

GAP_WORTH_READING_BYTES = 64 * 2**10
"""Reading and dropping this much costs less than another read call (about 15 µs at 5 GB/s)."""
LARGEST_REQUEST_BYTES = 8 * 2**20
"""Larger ones gain little: 1.1 GiB/s with 8 MiB, 0.9 with 4 MiB, 0.5 with 1 MiB, from a server on the same machine."""

_HEADS_BYTES = 64 * 2**10
"""Room in a request for what stands before contents."""
_MOST_KNOWN_SPANS = 2**14
"""Some MB of them."""


@dataclass(frozen=True)
class RankBlock:
    """A block of one target rank's file, being put together.

    Attributes:
        parameters: the rank's parameters by name.
        buffer: the block's bytes.
        parts: what of it comes from source files.
        overflows: of parameters that are cast, what became infinite in this block, and where in the whole parameter.
    """

    parameters: Mapping[str, ParameterPlan]
    buffer: np.ndarray
    parts: Sequence[Part]
    overflows: list[tuple[str, Overflow]] = field(default_factory=list)


class Gatherer(Protocol):
    """Fills parts of the blocks of some target ranks from source files; for one thread."""

    read_bytes: int

    def fill(self, blocks: Sequence[RankBlock]) -> None:
        """Puts the contents of all parts of the blocks into their places.

        Raises:
            CatalogError: a source file is not the one that was planned with.
            CheckpointError: a source file ends too early.
            StorageError: one cannot be read.
        """


class LocalGatherer:
    """Fills blocks from files on this machine.

    `ranks` are the parameters, by name, of each target rank whose blocks are filled together.
    """

    def __init__(
        self,
        plan: ConversionPlan,
        ranks: Sequence[Mapping[str, ParameterPlan]],
        sources: LocalFiles,
        scratch_bytes: int,
    ) -> None:
        self._scratch = np.empty(scratch_bytes, dtype=np.uint8)
        self._fetches = _Fetches(plan, ranks, ReadLimits(scratch_bytes, GAP_WORTH_READING_BYTES))
        self._sources: SourceFiles = sources
        self.read_bytes = 0

    def fill(self, blocks: Sequence[RankBlock]) -> None:  # noqa: D102
        by_source: dict[int, list[_Fetch]] = {}
        in_place: dict[tuple[int, tuple[Extent, ...]], np.ndarray] = {}
        for fetch in self._fetches.of(blocks):
            place = fetch.source_rank, fetch.extents
            if not fetch.goes_alone:
                by_source.setdefault(fetch.source_rank, []).append(fetch)
            elif place in in_place:
                fetch.deliver(in_place[place])
            else:
                run = self._read_alone(fetch)
                if fetch.span.is_as_wanted:
                    in_place[place] = run
        for source_rank, fetches in by_source.items():
            for group in coalesced(fetches, gap_bytes=GAP_WORTH_READING_BYTES, most_bytes=len(self._scratch)):
                self._read_together(source_rank, group)

    def _read_alone(self, fetch: "_Fetch") -> np.ndarray:
        """Reads a span's run, right into its place if its bytes are wanted as they are; returns where it is now."""
        span = fetch.span
        run = fetch.place if span.is_as_wanted else self._scratch[: span.length]
        source = self._sources.open(span.source_rank)
        position = 0
        for extent in fetch.extents:
            source.read_into(extent.offset, run[position : position + extent.length].data)
            position += extent.length
        self.read_bytes += span.length
        if not span.is_as_wanted:
            fetch.deliver(run)
        return run

    def _read_together(self, source_rank: int, group: "Sequence[_Fetch]") -> None:
        if len(group) == 1:
            self._read_alone(group[0])
            return
        start, length = stretch_of(group)
        self._sources.open(source_rank).read_into(start, self._scratch[:length].data)
        self.read_bytes += length
        for fetch in group:
            fetch.deliver(self._scratch[fetch.offset - start :][: fetch.length])


class RemoteGatherer:
    """Fills blocks from files on a remote storage.

    `ranks` are as for local ones. No more than `asked_bytes` are asked for at a time, or one request, which takes twice
    as much memory while answers are put together; `at_once` requests or more have room in that.
    """

    def __init__(
        self,
        plan: ConversionPlan,
        ranks: Sequence[Mapping[str, ParameterPlan]],
        sources: RemoteFiles,
        asked_bytes: int,
        at_once: int = 1,
    ) -> None:
        self._records = plan.inputs.catalog.records
        self._request_bytes = min(LARGEST_REQUEST_BYTES, asked_bytes // at_once)
        self._asked_bytes = asked_bytes
        self._fetches = _Fetches(plan, ranks, ReadLimits(self._request_bytes, REMOTE_GAP_WORTH_READING_BYTES))
        self._sources = sources
        self.read_bytes = 0

    def fill(self, blocks: Sequence[RankBlock]) -> None:  # noqa: D102
        wanted: dict[int, list[_Wanted]] = {}
        torn: list[_Fetch] = []
        for fetch in self._fetches.of(blocks):
            here = wanted.setdefault(fetch.source_rank, [])
            here += self._head_checks(fetch.source_rank, fetch.source_name)
            if len(fetch.extents) == 1:
                here.append(fetch)
            else:
                torn.append(fetch)
        most_bytes = self._request_bytes + _HEADS_BYTES
        requests = [
            (source_rank, group)
            for source_rank, items in wanted.items()
            for group in coalesced(items, gap_bytes=REMOTE_GAP_WORTH_READING_BYTES, most_bytes=most_bytes)
        ]
        self.read_bytes += sum(stretch_of(group)[1] for _, group in requests) + sum(fetch.length for fetch in torn)
        under_way: deque[tuple[Future[None], int]] = deque()
        asked_bytes = 0
        try:
            for fetch in torn:
                extents = [(extent.offset, extent.length) for extent in fetch.extents]
                answers = self._sources.open(fetch.source_rank).read_many(extents)
                fetch.deliver(np.frombuffer(b"".join(answers), np.uint8))
            for request in requests:
                length = stretch_of(request[1])[1]
                while under_way and asked_bytes + length > self._asked_bytes:
                    future, answered_bytes = under_way.popleft()
                    asked_bytes -= answered_bytes
                    future.result()
                under_way.append((submitted(self._read, request), length))
                asked_bytes += length
            for future, _ in under_way:
                future.result()
        finally:
            for future, _ in under_way:
                future.cancel()
            wait([future for future, _ in under_way])  # none may write into a block used for something else by then

    def _read(self, request: "tuple[int, Sequence[_Wanted]]") -> None:
        source_rank, group = request
        start, length = stretch_of(group)
        [answer] = self._sources.open(source_rank).read_many([(start, length)])
        run = np.frombuffer(answer, np.uint8)
        for item in group:
            item.deliver(run[item.offset - start :][: item.length])

    def _head_checks(self, source_rank: int, name: str) -> "list[_HeadCheck]":
        record = self._records[source_rank]
        entry = record.index.entries[name]
        return [
            _HeadCheck(offset, head, source_rank, record.location, name)
            for offset, head in self._sources.unchecked_heads(record, entry)
        ]


class _Wanted(Protocol):
    """Bytes of a source file that somebody waits for."""

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int: ...

    def deliver(self, run: np.ndarray) -> None: ...


@dataclass(frozen=True)
class _HeadCheck:
    """Bytes that must stand before a parameter's contents, in a file whose headers were taken to be as another's."""

    offset: int
    head: bytes
    source_rank: int
    file: str
    name: str

    @property
    def length(self) -> int:
        return len(self.head)

    def deliver(self, run: np.ndarray) -> None:
        """Compares them.

        Raises:
            CatalogError: others stand there.
        """
        if run.tobytes() != self.head:
            raise header_mismatch(self.source_rank, self.file, self.name, self.offset)


@dataclass(frozen=True)
class _Fetch:
    """A span for a certain part, and where its run is in the file: several extents if it crosses a border."""

    block: RankBlock
    part: Part
    span: Span
    extents: tuple[Extent, ...]
    offset: int
    length: int

    @property
    def source_rank(self) -> int:
        return self.span.source_rank

    @property
    def source_name(self) -> str:
        return self.block.parameters[self.part.name].sources[self.span.source].name

    @property
    def goes_alone(self) -> bool:
        """Whether joining it with others is not possible, or would cost more than it saves, on this machine."""
        return len(self.extents) > 1 or (self.span.is_as_wanted and self.length > GAP_WORTH_READING_BYTES)

    @property
    def place(self) -> np.ndarray:
        """Where the run belongs, if it is wanted as it is."""
        start = self.part.position + self.span.target_offset
        return self.block.buffer[start : start + self.span.length]

    def deliver(self, run: np.ndarray) -> None:
        """Puts the wanted elements out of the span's bytes to where they belong."""
        if self.span.is_as_wanted:
            self.place[:] = run
            return
        name = self.part.name
        overflow = place_values(run, self.span, self.part, self.block.parameters[name], self.block.buffer)
        if overflow is not None:
            self.block.overflows.append((name, overflow))


class _Fetches:
    """Finds out what has to be read for blocks; what was found for like parts is kept."""

    def __init__(self, plan: ConversionPlan, ranks: Sequence[Mapping[str, ParameterPlan]], limits: ReadLimits) -> None:
        self._plan = plan
        self._ranks = ranks
        self._limits = limits
        self._known_spans: dict[tuple[object, ...], tuple[Span, ...]] = {}
        self._known_count = 0

    def of(self, blocks: Sequence[RankBlock]) -> "list[_Fetch]":
        """All that the parts of the blocks need."""
        return [
            self._fetch(block, part, span)
            for block in blocks
            for part in block.parts
            for span in self._spans(block, part)
        ]

    def _fetch(self, block: RankBlock, part: Part, span: Span) -> _Fetch:
        extents = self._extents(block.parameters[part.name], span)
        return _Fetch(block, part, span, extents, extents[0].offset, span.length)

    def _extents(self, parameter: ParameterPlan, span: Span) -> tuple[Extent, ...]:
        entry = self._plan.source_entry(span.source_rank, parameter.sources[span.source].name)
        return entry.extents_of(span.offset, span.length)

    def _spans(self, block: RankBlock, part: Part) -> tuple[Span, ...]:
        parameter = block.parameters[part.name]
        if parameter.appended:
            return ()

        def shard_of(read: ReadItem) -> SourceShard:
            return source_shard(self._plan, parameter, read)

        # parameters that are cut alike share their reads: layers repeat, so most of the arithmetic was done before
        kinds = tuple((source.dtype.name, source.shape) for source in parameter.sources)
        key = (id(parameter.reads), parameter.dtype.name, kinds, part.box)
        spans = self._known_spans.get(key)
        if spans is None:
            if self._known_count > _MOST_KNOWN_SPANS:
                self._known_spans.clear()
                self._known_count = 0
            limits = ReadLimits(self._limits.run_bytes, self._limits.gap_bytes * self._sharers(parameter))
            spans = self._known_spans[key] = part_spans(part, parameter.reads, shard_of, parameter.dtype, limits)
            self._known_count += len(spans)
        return spans

    def _sharers(self, parameter: ParameterPlan) -> int:
        """How many different boxes the ranks have in the same rows.

        The gap between two rows of one rank's columns is wide, but the others want what is in it.
        """
        axes = parameter.reads[0].axes if parameter.reads else None
        axis = axes.index(0) if axes else 0  # of the target: where the source has its rows
        rows = parameter.box.start[axis : axis + 1], parameter.box.stop[axis : axis + 1]
        boxes = {rank[parameter.name].box for rank in self._ranks if parameter.name in rank}
        return sum((box.start[axis : axis + 1], box.stop[axis : axis + 1]) == rows for box in boxes)
