"""Fills parts of target shards from source files, with few and large reads.

A part is filled by *spans*: runs of bytes of a source shard that are worth one read each, and where their elements go.
Spans that overlap or lie close together in a file are read at once, by way of a scratch buffer, whichever target rank
they are for: what several ranks need is read once. A long span whose bytes are wanted as they are goes straight to its
place.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.blocks import Part
from core.checkpoint.model import Extent, TensorEntry
from core.errors import CatalogError, ConversionError
from core.plan import ConversionPlan, ParameterPlan, ReadItem
from core.slices import Shape, TensorSlice, byte_span, contiguous_axis, row_major_strides
from core.storage.coalescing import coalesced
from core.storage.files import SourceFile, open_source
from core.storage.urls import Location, parse_url

GAP_WORTH_READING_BYTES = 64 * 2**10
"""Reading and dropping this much costs less than another read call (about 15 µs at 5 GB/s)."""

_MOST_KNOWN_SPANS = 2**14
"""Some MB of them."""
_UINT_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class RankBlock:
    """A block of one target rank's file, being put together.

    Attributes:
        parameters: the rank's parameters by name.
        buffer: the block's bytes.
        parts: what of it comes from source files.
    """

    parameters: Mapping[str, ParameterPlan]
    buffer: np.ndarray
    parts: Sequence[Part]


class Gatherer:
    """Fills parts of the blocks of some target ranks from source files.

    `ranks` are the parameters, by name, of each target rank whose blocks are filled together.
    """

    def __init__(
        self, plan: ConversionPlan, ranks: Sequence[Mapping[str, ParameterPlan]], scratch_bytes: int, sources_open: int
    ) -> None:
        self._sources = _Sources(plan, sources_open)
        self._scratch = np.empty(scratch_bytes, dtype=np.uint8)
        self._ranks = ranks
        self._known_spans: dict[tuple[int, int, TensorSlice], tuple[_Span, ...]] = {}
        self._known_count = 0
        self.read_bytes = 0

    def fill(self, blocks: Sequence[RankBlock]) -> None:
        """Puts the contents of all parts of the blocks into their places.

        Raises:
            CatalogError: a source file is not the one that was planned with.
            CheckpointError: a source file ends too early.
            StorageError: one cannot be read.
        """
        by_source: dict[int, list[_Fetch]] = {}
        in_place: dict[tuple[int, tuple[Extent, ...]], np.ndarray] = {}
        for block in blocks:
            for part in block.parts:
                for span in self._spans(block, part):
                    extents = _file_extents(self._sources.entry(span.source_rank, part.name), span.offset, span.length)
                    fetch = _Fetch(block, part, span, extents)
                    if not fetch.goes_alone:
                        by_source.setdefault(span.source_rank, []).append(fetch)
                    elif (span.source_rank, extents) in in_place:
                        fetch.deliver(in_place[span.source_rank, extents])
                    else:
                        run = self._read_alone(fetch)
                        if span.strides is None:
                            in_place[span.source_rank, extents] = run
        for source_rank, fetches in by_source.items():
            for group in coalesced(fetches, gap_bytes=GAP_WORTH_READING_BYTES, most_bytes=len(self._scratch)):
                self._read_together(source_rank, group)

    def check_unchanged(self) -> None:
        """Makes sure that the source files did not change while they were read.

        Raises:
            CatalogError: one did.
        """
        self._sources.check_unchanged()

    def close(self) -> None:
        """Closes the source files."""
        self._sources.close()

    def _spans(self, block: RankBlock, part: Part) -> "tuple[_Span, ...]":
        parameter = block.parameters[part.name]
        itemsize = parameter.dtype.itemsize

        def source_shape(rank: int) -> Shape:
            return self._sources.entry(rank, part.name).shape

        # parameters that are cut alike share their reads: layers repeat, so most of the arithmetic was done before
        key = (id(parameter.reads), itemsize, part.box)
        spans = self._known_spans.get(key)
        if spans is None:
            if self._known_count > _MOST_KNOWN_SPANS:
                self._known_spans.clear()
                self._known_count = 0
            limits = _Limits(len(self._scratch), GAP_WORTH_READING_BYTES * self._sharers(parameter))
            spans = self._known_spans[key] = _part_spans(part, parameter.reads, source_shape, itemsize, limits)
            self._known_count += len(spans)
        return spans

    def _sharers(self, parameter: ParameterPlan) -> int:
        """How many different boxes the ranks have in the same rows.

        The gap between two rows of one rank's columns is wide, but the others want what is in it.
        """
        rows = parameter.box.start[:1], parameter.box.stop[:1]
        boxes = {rank[parameter.name].box for rank in self._ranks if parameter.name in rank}
        return sum((box.start[:1], box.stop[:1]) == rows for box in boxes)

    def _read_alone(self, fetch: "_Fetch") -> np.ndarray:
        """Reads a span's run, right into its place if its bytes are wanted as they are; returns where it is now."""
        span = fetch.span
        run = fetch.place if span.strides is None else self._scratch[: span.length]
        source = self._sources.open(span.source_rank)
        position = 0
        for extent in fetch.extents:
            source.read_into(extent.offset, run[position : position + extent.length].data)
            position += extent.length
        self.read_bytes += span.length
        if span.strides is not None:
            fetch.deliver(run)
        return run

    def _read_together(self, source_rank: int, group: "Sequence[_Fetch]") -> None:
        if len(group) == 1:
            self._read_alone(group[0])
            return
        start = group[0].offset
        length = max(fetch.offset + fetch.length for fetch in group) - start
        self._sources.open(source_rank).read_into(start, self._scratch[:length].data)
        self.read_bytes += length
        for fetch in group:
            fetch.deliver(self._scratch[fetch.offset - start :][: fetch.length])


def gap_cost_bytes(plan: ConversionPlan, parameter: ParameterPlan) -> int:
    """What a target shard costs on top of its own bytes because it takes parts of the sources' rows.

    That is the bytes in the gaps between those parts, or, where they are wide, what another read call costs.
    """
    return sum(
        count * min(gap_bytes, GAP_WORTH_READING_BYTES)
        for read in parameter.reads
        for count, gap_bytes in _gaps(
            read.source_box, plan.source_entry(read.source_rank, parameter.name).shape, parameter.dtype.itemsize
        )
    )


@dataclass(frozen=True)
class _Limits:
    """The longest run to be read at once, and the widest gap inside it to be read through, in bytes."""

    run_bytes: int
    gap_bytes: int


@dataclass(frozen=True)
class _Span:
    """A run of bytes of a source shard that is worth one read, and where its elements go in a part.

    Attributes:
        source_rank: whose shard.
        offset: first byte of the run in the shard.
        length: bytes of the run.
        target_offset: first byte in the part, if the run is wanted as it is.
        index: elements of the part that are filled, else.
        strides: bytes between the wanted elements in the run; None if it is wanted as it is.
    """

    source_rank: int
    offset: int
    length: int
    target_offset: int
    index: tuple[Any, ...]
    strides: Shape | None


@dataclass(frozen=True)
class _Fetch:
    """A span for a certain part, and where its run is in the file: several extents if it crosses a border."""

    block: RankBlock
    part: Part
    span: _Span
    extents: tuple[Extent, ...]

    @property
    def offset(self) -> int:
        return self.extents[0].offset

    @property
    def length(self) -> int:
        return self.span.length

    @property
    def goes_alone(self) -> bool:
        """Whether joining it with others is not possible, or would cost more than it saves."""
        return len(self.extents) > 1 or (self.span.strides is None and self.length > GAP_WORTH_READING_BYTES)

    @property
    def place(self) -> np.ndarray:
        """Where the run belongs, if it is wanted as it is."""
        start = self.part.position + self.span.target_offset
        return self.block.buffer[start : start + self.span.length]

    def deliver(self, run: np.ndarray) -> None:
        """Copies the wanted elements out of the span's bytes to where they belong."""
        part, span = self.part, self.span
        if span.strides is None:
            self.place[:] = run
            return
        dtype = _UINT_OF_SIZE[self.block.parameters[part.name].dtype.itemsize]
        target = np.ndarray(part.box.shape, dtype, self.block.buffer, part.position)[span.index]
        target[...] = np.ndarray(target.shape, dtype, run, strides=span.strides)


def _part_spans(
    part: Part,
    reads: Sequence[ReadItem],
    source_shape: Callable[[int], Shape],
    itemsize: int,
    limits: _Limits,
) -> tuple[_Span, ...]:
    """The spans that fill a part exactly once.

    Raises:
        ConversionError: the reads do not fill it, which is a bug.
    """
    spans = []
    filled = 0
    for read in reads:
        shared = read.target_box.intersect(part.box)
        if shared is not None:
            filled += shared.size
            shape = source_shape(read.source_rank)
            region = _moved(shared, read.target_box, read.source_box)
            for source_box in _boxes_worth_a_read(region, shape, itemsize, limits):
                place = _moved(source_box, region, shared.relative_to(part.box))
                spans.append(_span(read.source_rank, source_box, shape, place, part.box.shape, itemsize))
    if filled != part.box.size:
        raise ConversionError(
            f"parameter {part.name!r}: {filled} of the {part.box.size} elements of {part.box} have a source. "
            "This is a bug in reshard"
        )
    return tuple(spans)


def _moved(box: TensorSlice, origin: TensorSlice, destination: TensorSlice) -> TensorSlice:
    """A box inside `origin`, moved as `origin` is to `destination` (of the same shape)."""
    shifts = [to - of for of, to in zip(origin.start, destination.start, strict=True)]
    return TensorSlice(
        tuple(low + shift for low, shift in zip(box.start, shifts, strict=True)),
        tuple(high + shift for high, shift in zip(box.stop, shifts, strict=True)),
    )


def _span(
    source_rank: int, source_box: TensorSlice, source_shape: Shape, place: TensorSlice, part_shape: Shape, itemsize: int
) -> _Span:
    run = byte_span(source_box, source_shape, itemsize)
    if contiguous_axis(source_box, source_shape) == 0 and contiguous_axis(place, part_shape) == 0:
        return _Span(source_rank, run.offset, run.length, byte_span(place, part_shape, itemsize).offset, (), None)
    strides = tuple(stride * itemsize for stride in row_major_strides(source_shape))
    return _Span(source_rank, run.offset, run.length, 0, place.as_index(), strides)


def _boxes_worth_a_read(
    region: TensorSlice, shard_shape: Shape, itemsize: int, limits: _Limits
) -> Iterator[TensorSlice]:
    """A region of a source shard as boxes that are each worth one read."""
    too_long = byte_span(region, shard_shape, itemsize).length > limits.run_bytes
    if not too_long and not _has_wide_gaps(region, shard_shape, itemsize, limits.gap_bytes):
        yield region
        return
    axis = next(axis for axis, length in enumerate(region.shape) if length > 1)
    stride_bytes = row_major_strides(shard_shape)[axis] * itemsize
    step = max(1, limits.run_bytes // stride_bytes) if too_long else 1
    for start in range(region.start[axis], region.stop[axis], step):
        low, high = list(region.start), list(region.stop)
        low[axis], high[axis] = start, min(start + step, region.stop[axis])
        yield from _boxes_worth_a_read(TensorSlice(tuple(low), tuple(high)), shard_shape, itemsize, limits)


def _has_wide_gaps(region: TensorSlice, shard_shape: Shape, itemsize: int, gap_bytes: int) -> bool:
    """Whether a run over the whole region would read through gaps that are not worth it."""
    return any(gap > gap_bytes for _, gap in _gaps(region, shard_shape, itemsize))


def _gaps(region: TensorSlice, shard_shape: Shape, itemsize: int) -> Iterator[tuple[int, int]]:
    """The gaps inside a region of a source shard: how many, and how many bytes each, axis by axis from the last."""
    strides = row_major_strides(shard_shape)
    inner_elements = 1
    for axis in range(len(shard_shape) - 1, -1, -1):
        length = region.shape[axis]
        if length > 1 and strides[axis] > inner_elements:
            yield math.prod(region.shape[:axis]) * (length - 1), (strides[axis] - inner_elements) * itemsize
        inner_elements += (length - 1) * strides[axis]


def _file_extents(entry: TensorEntry, offset: int, length: int) -> tuple[Extent, ...]:
    """Where bytes `offset` to `offset + length` of a parameter's contents are in its file."""
    first = entry.extents[0]
    if offset + length <= first.length:
        return (Extent(first.offset + offset, length),)
    extents = []
    position = 0
    for extent in entry.extents:
        start = max(offset, position)
        stop = min(offset + length, position + extent.length)
        if start < stop:
            extents.append(Extent(extent.offset + start - position, stop - start))
        position += extent.length
    return tuple(extents)


class _Sources:
    """The source files of a gatherer; opened when first needed, the least recently used closed again."""

    def __init__(self, plan: ConversionPlan, most_open: int) -> None:
        self._records = plan.inputs.catalog.records
        self._most_open = most_open
        self._open: OrderedDict[int, SourceFile] = OrderedDict()
        self._locations: dict[int, Location] = {}

    def entry(self, rank: int, name: str) -> TensorEntry:
        """A parameter in a source rank's file."""
        return self._records[rank].index.entries[name]

    def open(self, rank: int) -> SourceFile:
        """A source rank's file.

        Raises:
            CatalogError: it is not the file that was planned with.
        """
        source = self._open.get(rank)
        if source is None:
            if len(self._open) >= self._most_open:
                self._open.popitem(last=False)[1].close()
            source = self._open[rank] = self._open_unchanged(rank)
        self._open.move_to_end(rank)
        return source

    def check_unchanged(self) -> None:
        """Makes sure that files did not change while they were read.

        Raises:
            CatalogError: one did.
        """
        for rank in sorted(self._locations):
            self._open_unchanged(rank).close()

    def close(self) -> None:
        """Closes all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _open_unchanged(self, rank: int) -> SourceFile:
        record = self._records[rank]
        # each is opened at least twice, and following links takes as long as a small read
        location = self._locations.get(rank)
        if location is None:
            location = self._locations[rank] = parse_url(record.location)
        source = open_source(location)
        if source.version != record.version:
            source.close()
            raise CatalogError(
                f"rank_{rank}: {record.location} changed while it was being converted (it was {record.version}, it is "
                f"{source.version}). Start the conversion again when nothing writes to the source any more"
            )
        return source
