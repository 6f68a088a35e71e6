"""Carries out the plan of one target rank: reads what it needs, and writes its file front to back.

The file is made of *blocks*, each as large as the memory budget allows. A block holds a stretch of the file: literal
bytes (headers) and parts of shards. A part is a box that is contiguous in the target shard; it is filled by *fetches*,
which each read one run of bytes of one source file. Fetches that lie close together in a file are read at once. A block
is digested and written when it is full, so memory does not depend on the size of any tensor.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from core.checkpoint.formats import plan_file
from core.checkpoint.model import Content, Extent, OutputEntry, TensorEntry
from core.dtypes import MAP_TENSOR
from core.errors import CatalogError, ConversionError
from core.manifest import ParameterRecord, ShardRecord
from core.plan import ConversionPlan, ParameterPlan, RankPlan
from core.slices import Shape, TensorSlice, byte_span, contiguous_axis, contiguous_boxes, row_major_strides
from core.storage.coalescing import coalesced
from core.storage.files import SourceFile, open_source, write_file
from core.storage.urls import Location, parse_url

GAP_WORTH_READING_BYTES = 64 * 2**10
"""Reading and dropping this much costs less than another read call (about 15 µs at 5 GB/s)."""

_OPEN_SOURCES = 64
_UINT_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Advance = Callable[[int], None]
"""Told of every block written, in bytes; may raise to stop the work."""


def transform_rank(
    plan: ConversionPlan, rank: int, directory: Location, *, identity: str, block_bytes: int, advance: Advance
) -> ShardRecord:
    """Writes one target rank's file below `directory` and returns its record.

    Uses two buffers of `block_bytes`. The file appears only when it is whole.

    Raises:
        CatalogError: a source file is not the one that was planned with.
        CheckpointError: a source file is damaged.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    rank_plan = plan.rank_plan(rank)
    outputs = expected_entries(plan, rank_plan)
    file_plan = plan_file(plan.inputs.format, outputs)
    digests = {output.name: xxhash.xxh3_128() for output in outputs}
    sources = _Sources(plan, _OPEN_SOURCES)
    gatherer = _Gatherer(rank_plan, sources, block_bytes)
    try:
        with write_file(directory.child(plan.file_name(rank))) as file:
            for block in _blocks(file_plan.segments, outputs, block_bytes):
                view = gatherer.fill(block)
                for part in block.parts:
                    digests[part.name].update(view[part.position : part.position + part.size_bytes])
                file.write(view)
                advance(len(view))
            sources.check_unchanged(rank_plan.source_ranks)
    finally:
        sources.close()
    for output in outputs:
        if output.text is not None:
            digests[output.name].update(output.text.encode("utf-8", "surrogatepass"))
    return ShardRecord(
        identity=identity,
        rank=rank,
        file=plan.file_name(rank),
        size_bytes=file_plan.size_bytes,
        copy_of=None,
        source_ranks=rank_plan.source_ranks,
        read_bytes=gatherer.read_bytes,
        seconds=round(time.monotonic() - started, 3),
        parameters=tuple(
            ParameterRecord(
                name=output.name,
                dtype=output.dtype.name,
                shape=output.shape,
                digest=digests[output.name].hexdigest(),
            )
            for output in outputs
        ),
    )


def expected_entries(plan: ConversionPlan, rank_plan: RankPlan) -> tuple[OutputEntry, ...]:
    """What a target rank's file is to hold."""
    return tuple(_output_entry(plan, parameter) for parameter in rank_plan.parameters)


def _output_entry(plan: ConversionPlan, parameter: ParameterPlan) -> OutputEntry:
    text = None
    piece_bytes: tuple[int, ...] = ()
    if parameter.reads:
        entry = plan.source_entry(parameter.reads[0].source_rank, parameter.name)
        text = entry.text
        if entry.dtype is MAP_TENSOR:
            piece_bytes = tuple(extent.length for extent in entry.extents)
    return OutputEntry(parameter.name, parameter.dtype, parameter.box.shape, text, piece_bytes)


@dataclass(frozen=True)
class _Part:
    """A contiguous box of a target shard, and the byte of the block where it begins."""

    name: str
    box: TensorSlice
    position: int
    size_bytes: int


@dataclass
class _Block:
    """A stretch of the target file being put together: literal bytes by position, and parts of shards."""

    size_bytes: int = 0
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)


def _blocks(segments: Sequence[bytes | Content], outputs: Sequence[OutputEntry], block_bytes: int) -> Iterator[_Block]:
    """The file as blocks of at most `block_bytes`, in order."""
    by_name = {output.name: output for output in outputs}
    block = _Block()
    for segment in segments:
        for piece in _pieces(segment, by_name, block_bytes):
            size = len(piece) if isinstance(piece, bytes) else piece.size_bytes
            if block.size_bytes + size > block_bytes:
                yield block
                block = _Block()
            if isinstance(piece, bytes):
                block.literals.append((block.size_bytes, piece))
            else:
                block.parts.append(_Part(piece.name, piece.box, block.size_bytes, piece.size_bytes))
            block.size_bytes += size
    yield block


def _pieces(segment: bytes | Content, outputs: dict[str, OutputEntry], block_bytes: int) -> Iterator["bytes | _Part"]:
    if isinstance(segment, bytes):
        for start in range(0, len(segment), block_bytes):
            yield segment[start : start + block_bytes]
        return
    output = outputs[segment.name]
    itemsize = output.dtype.itemsize
    boxes = contiguous_boxes(output.shape, segment.start // itemsize, segment.stop // itemsize, block_bytes // itemsize)
    for box in boxes:
        yield _Part(segment.name, box, 0, box.size * itemsize)


@dataclass(frozen=True)
class _Fetch:
    """A run of bytes of a source file, and where its elements go.

    Attributes:
        source_rank: whose file.
        extents: where the run is in the file: one extent, several where a parameter's bytes are split.
        elements: the destination inside the block: a uint array of any strides, or uint8 if it is plain.
        strides: bytes between the wanted elements in the run; None (plain) if the whole run is wanted as it is.
    """

    source_rank: int
    extents: tuple[Extent, ...]
    elements: np.ndarray
    strides: tuple[int, ...] | None

    @property
    def offset(self) -> int:
        return self.extents[0].offset

    @property
    def length(self) -> int:
        return sum(extent.length for extent in self.extents)

    @property
    def goes_alone(self) -> bool:
        """Whether joining it with others would cost more than it saves."""
        return len(self.extents) > 1 or (self.strides is None and self.length > GAP_WORTH_READING_BYTES)

    def deliver(self, run: np.ndarray) -> None:
        """Copies the wanted elements out of the run (uint8, exactly `length` of them)."""
        if self.strides is None:
            self.elements[...] = run
        else:
            self.elements[...] = np.ndarray(self.elements.shape, self.elements.dtype, run, strides=self.strides)


class _Gatherer:
    """Fills blocks from source files, by way of one scratch buffer."""

    def __init__(self, rank_plan: RankPlan, sources: "_Sources", block_bytes: int) -> None:
        self._parameters = {parameter.name: parameter for parameter in rank_plan.parameters}
        self._sources = sources
        self._block = np.empty(block_bytes, dtype=np.uint8)
        self._scratch = np.empty(block_bytes, dtype=np.uint8)
        self.read_bytes = 0

    def fill(self, block: _Block) -> memoryview:
        """The block's bytes, valid until the next call."""
        for position, literal in block.literals:
            self._block[position : position + len(literal)] = np.frombuffer(literal, np.uint8)
        by_source: dict[int, list[_Fetch]] = {}
        for part in block.parts:
            for fetch in self._fetches(part):
                if fetch.goes_alone:
                    self._read([fetch])
                else:
                    by_source.setdefault(fetch.source_rank, []).append(fetch)
        for fetches in by_source.values():
            for group in coalesced(fetches, gap_bytes=GAP_WORTH_READING_BYTES, most_bytes=len(self._scratch)):
                self._read(group)
        return self._block.data[: block.size_bytes]

    def _fetches(self, part: _Part) -> Iterator[_Fetch]:
        parameter = self._parameters[part.name]
        dtype = _UINT_OF_SIZE[parameter.dtype.itemsize]
        elements = np.ndarray(part.box.shape, dtype, self._block, part.position)
        filled = 0
        for read in parameter.reads:
            shared = read.target_box.intersect(part.box)
            if shared is not None:
                filled += shared.size
                entry = self._sources.entry(read.source_rank, part.name)
                region = _moved(shared, read.target_box, read.source_box)
                # the ellipsis keeps a scalar an array
                index: tuple[Any, ...] = (*shared.relative_to(part.box).as_index(), ...)
                wanted = elements[index]
                for box, view in _spans(region, wanted, entry.shape, len(self._scratch)):
                    yield _fetch(read.source_rank, entry, box, view)
        if filled != part.box.size:
            raise ConversionError(
                f"parameter {part.name!r}: {filled} of the {part.box.size} elements of {part.box} have a source. "
                "This is a bug in reshard"
            )

    def _read(self, group: Sequence[_Fetch]) -> None:
        source = self._sources.open(group[0].source_rank)
        plain = len(group) == 1 and group[0].strides is None
        start = group[0].offset
        if len(group) == 1:
            extents: Sequence[Extent] = group[0].extents
        else:
            extents = [Extent(start, max(fetch.offset + fetch.length for fetch in group) - start)]
        length = sum(extent.length for extent in extents)
        run = group[0].elements if plain else self._scratch[:length]
        buffer = run.data
        for extent in extents:
            source.read_into(extent.offset, buffer[: extent.length])
            buffer = buffer[extent.length :]
        self.read_bytes += length
        if not plain:
            for fetch in group:
                fetch.deliver(run[fetch.offset - start :][: fetch.length])


def _moved(box: TensorSlice, origin: TensorSlice, destination: TensorSlice) -> TensorSlice:
    """A box inside `origin`, moved as `origin` is to `destination` (of the same shape)."""
    shifts = [to - of for of, to in zip(origin.start, destination.start, strict=True)]
    return TensorSlice(
        tuple(low + shift for low, shift in zip(box.start, shifts, strict=True)),
        tuple(high + shift for high, shift in zip(box.stop, shifts, strict=True)),
    )


def _spans(
    region: TensorSlice, wanted: np.ndarray, shard_shape: Shape, most_bytes: int
) -> Iterator[tuple[TensorSlice, np.ndarray]]:
    """A region of a source shard as boxes that are each worth one read of at most `most_bytes`.

    `wanted` is the destination, of the region's shape; each box comes with its part of it.
    """
    itemsize = wanted.itemsize
    too_long = byte_span(region, shard_shape, itemsize).length > most_bytes
    if not too_long and not _has_wide_gaps(region, shard_shape, itemsize):
        yield region, wanted
        return
    axis = next(axis for axis, length in enumerate(region.shape) if length > 1)
    stride_bytes = row_major_strides(shard_shape)[axis] * itemsize
    step = max(1, most_bytes // stride_bytes) if too_long else 1
    for start in range(0, region.shape[axis], step):
        part = [slice(None)] * len(region.shape)
        part[axis] = slice(start, start + step)
        low, high = list(region.start), list(region.stop)
        low[axis] += start
        high[axis] = min(low[axis] + step, high[axis])
        yield from _spans(TensorSlice(tuple(low), tuple(high)), wanted[tuple(part)], shard_shape, most_bytes)


def _has_wide_gaps(region: TensorSlice, shard_shape: Shape, itemsize: int) -> bool:
    """Whether a run over the whole region would read through gaps that are not worth it."""
    strides = row_major_strides(shard_shape)
    inner_elements = 1
    for axis in range(len(shard_shape) - 1, -1, -1):
        length = region.shape[axis]
        if length > 1 and (strides[axis] - inner_elements) * itemsize > GAP_WORTH_READING_BYTES:
            return True
        inner_elements += (length - 1) * strides[axis]
    return False


def _fetch(source_rank: int, entry: TensorEntry, box: TensorSlice, wanted: np.ndarray) -> _Fetch:
    """The fetch for a box of a source shard."""
    span = byte_span(box, entry.shape, wanted.itemsize)
    extents = tuple(_file_extents(entry, span.offset, span.length))
    if contiguous_axis(box, entry.shape) == 0 and wanted.flags.c_contiguous:
        return _Fetch(source_rank, extents, wanted.reshape(-1).view(np.uint8), None)
    strides = tuple(stride * wanted.itemsize for stride in row_major_strides(entry.shape))
    return _Fetch(source_rank, extents, wanted, strides)


def _file_extents(entry: TensorEntry, offset: int, length: int) -> Iterator[Extent]:
    """Where bytes `offset` to `offset + length` of a parameter's contents are in its file."""
    position = 0
    for extent in entry.extents:
        start = max(offset, position)
        stop = min(offset + length, position + extent.length)
        if start < stop:
            yield Extent(extent.offset + start - position, stop - start)
        position += extent.length


class _Sources:
    """The source files of one rank's work; opened when first needed, the least recently used closed again."""

    def __init__(self, plan: ConversionPlan, most_open: int) -> None:
        self._records = plan.inputs.catalog.records
        self._most_open = most_open
        self._open: OrderedDict[int, SourceFile] = OrderedDict()

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

    def check_unchanged(self, ranks: Sequence[int]) -> None:
        """Makes sure that files did not change while they were read.

        Raises:
            CatalogError: one did.
        """
        for rank in ranks:
            self._open_unchanged(rank).close()

    def close(self) -> None:
        """Closes all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _open_unchanged(self, rank: int) -> SourceFile:
        record = self._records[rank]
        source = open_source(parse_url(record.location))
        if source.version != record.version:
            source.close()
            raise CatalogError(
                f"rank_{rank}: {record.location} changed while it was being converted (it was {record.version}, it is "
                f"{source.version}). Start the conversion again when nothing writes to the source any more"
            )
        return source
