"""The read ranges that fill a chunk of a target shard. Pure: nothing is read here.

A *read range* is a run of bytes of a source shard that is worth one read, and the place of its elements in the chunk.
It may contain gaps of unwanted bytes: reading through a narrow gap costs less than another read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reshard.core.errors import ConversionError
from reshard.core.plan.model import ParameterPlan, ReadItem, ReadScale
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.dtypes import SCALED, DType
from reshard.core.tensor.segments import NEW_AXIS, BlockScale, Piece, reorders
from reshard.core.tensor.slices import (
    Extent,
    Shape,
    TensorSlice,
    bounding_extent,
    contiguous_axis,
    row_major_strides,
)
from reshard.core.transfer.file_blocks import Chunk


def gap_cost_bytes(plan: ConversionPlan, parameter: ParameterPlan, gap_bytes: int) -> int:
    """Bytes that a target shard costs beyond its own because it takes parts of the sources' rows.

    A gap between two wanted runs costs its bytes; one wider than `gap_bytes` costs another read, worth `gap_bytes`.
    """
    return sum(
        count * min(between_bytes, gap_bytes)
        for read in parameter.reads
        for count, between_bytes in _gaps(read.source_box, source_shard(plan, parameter, read))
    )


@dataclass(frozen=True)
class SourceShard:
    """Shape and element type of a source parameter in one rank's file."""

    shape: Shape
    dtype: DType

    @property
    def strides(self) -> Shape:
        """Bytes between neighbors along each axis."""
        return tuple(stride * self.dtype.itemsize for stride in row_major_strides(self.shape))


def source_shard(plan: ConversionPlan, parameter: ParameterPlan, read: ReadItem) -> SourceShard:
    """The source shard a read item refers to."""
    source = parameter.sources[read.source]
    return SourceShard(plan.source_entry(read.source_rank, source.name).shape, source.dtype)


@dataclass(frozen=True)
class ReadLimits:
    """Upper bounds in bytes: of a single read, and of a gap worth reading through."""

    range_bytes: int
    gap_bytes: int


@dataclass(frozen=True)
class ReadRange:
    """A run of bytes of a source shard that is worth one read, and the place of its elements in a chunk.

    Attributes:
        source_rank: the rank that holds the shard.
        source: number of the source parameter.
        offset: first byte in the shard.
        dtype: element type, if the values are to be cast; None if they are copied.
        target_offset: first byte in the chunk, if every byte is wanted, in order.
        index: the chunk's elements that are filled, otherwise; perhaps in steps.
        strides: bytes between wanted elements, along the chunk's axes; None if every byte is wanted.
        transposed: True if the chunk's axes are in another order.
        scaled: the box of the source whose values are scaled first, if they are; `strides` are then those of the
            scaled values.
    """

    source_rank: int
    source: int
    offset: int
    length: int
    dtype: DType | None
    target_offset: int
    index: tuple[Any, ...]
    strides: Shape | None
    transposed: bool = False
    scaled: "ScaledBox | None" = None

    @cached_property
    def is_verbatim(self) -> bool:
        """True if the bytes read are the chunk's bytes, unchanged and in order."""
        return self.strides is None and self.dtype is None


@dataclass(frozen=True)
class ScaledBox:
    """Values that are multiplied with their blocks' factors.

    Attributes:
        start: first index of the box in the whole matrix.
        shape: shape of the box.
        strides: bytes between neighbors in the bytes read.
    """

    scale: BlockScale
    start: Shape
    shape: Shape
    strides: Shape


def chunk_read_ranges(
    chunk: Chunk,
    reads: Sequence[ReadItem],
    shard_of: Callable[[ReadItem], SourceShard],
    dtype: DType,
    limits: ReadLimits,
) -> tuple[ReadRange, ...]:
    """Return the read ranges that fill a chunk of element type `dtype` exactly once."""
    found = []
    filled = 0
    for read in reads:
        wanted = read.target_box.intersect(chunk.box)
        if wanted is not None:
            filled += wanted.size
            shard = shard_of(read)
            axes = read.axes or tuple(range(len(shard.shape)))
            piece = Piece(read.source, read.source_box, axes, read.target_box.start)
            for source_box in _boxes_worth_a_read(piece.source_box(wanted), shard, limits):
                place = piece.placed_box(source_box).relative_to(chunk.box)
                found.append(_Part(read, axes, source_box, shard, place))
    if filled != chunk.box.size:
        raise ConversionError(
            f"parameter {chunk.name!r}: {filled} of the {chunk.box.size} elements of {chunk.box} have a source. "
            "This is a bug in reshard"
        )
    return tuple(_read_range(part, steps, chunk.box.shape, dtype) for part, steps in _in_steps(found, limits))


@dataclass(frozen=True)
class _Part:
    """A box of a source shard that is worth a read, and its place in the chunk; `axes` as in `Piece`."""

    read: ReadItem
    axes: Shape
    source_box: TensorSlice
    shard: SourceShard
    place: TensorSlice

    @cached_property
    def extent(self) -> Extent:
        """The run of bytes of the shard that contains it."""
        return bounding_extent(self.source_box, self.shard.shape, self.shard.dtype.itemsize)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """Equal for parts that may follow one another in steps."""
        return self.read.source_rank, self.read.source, self.axes, self.source_box.shape

    def step_to(self, other: "_Part") -> "_Step | None":
        """The step along one axis to another part of the same kind; None if it is not one."""
        moved = [axis for axis, low in enumerate(self.source_box.start) if other.source_box.start[axis] != low]
        if len(moved) != 1 or moved[0] not in self.axes or self.source_box.shape[moved[0]] != 1:
            return None
        target_axis = self.axes.index(moved[0])
        places = [low for axis, low in enumerate(self.place.start) if axis != target_axis]
        if places != [low for axis, low in enumerate(other.place.start) if axis != target_axis]:
            return None
        distance = other.source_box.start[moved[0]] - self.source_box.start[moved[0]]
        place_distance = other.place.start[target_axis] - self.place.start[target_axis]
        if distance <= 0 or place_distance <= 0:
            return None
        return _Step(target_axis, place_distance, distance * self.shard.strides[moved[0]])


@dataclass(frozen=True)
class _Step:
    """A distance along one target axis: in elements of the chunk, and in bytes of the source shard."""

    axis: int
    elements: int
    stride_bytes: int


@dataclass
class _Steps:
    """Parts of a kind at equal distances: `count` of them, of which `last` is the last."""

    last: _Part
    count: int = 1
    step: _Step | None = None


def _in_steps(parts: Sequence[_Part], limits: ReadLimits) -> Iterator[tuple[_Part, _Steps]]:
    """The first part of each progression of parts at equal distances, such as every other row, read at once."""
    found: list[tuple[_Part, _Steps]] = []
    latest: dict[tuple[object, ...], tuple[_Part, _Steps]] = {}
    for part in parts:
        first, steps = latest.get(part.kind, (part, None))
        step = steps.last.step_to(part) if steps and part.read.scale is None else None
        if steps and step and steps.step in (None, step):
            gap_bytes = step.stride_bytes - first.extent.length
            length = step.stride_bytes * steps.count + first.extent.length
            if 0 <= gap_bytes <= limits.gap_bytes and length <= limits.range_bytes:
                steps.last, steps.count, steps.step = part, steps.count + 1, step
                continue
        latest[part.kind] = part, _Steps(part)
        found.append(latest[part.kind])
    yield from found


def _read_range(part: _Part, steps: _Steps, chunk_shape: Shape, dtype: DType) -> ReadRange:
    read, shard, place = part.read, part.shard, part.place
    cast = shard.dtype if shard.dtype != dtype else None
    transposed = reorders(read.axes)
    is_contiguous = contiguous_axis(part.source_box, shard.shape) == 0 and contiguous_axis(place, chunk_shape) == 0
    if read.scale is not None:
        return _scaled_read_range(part, read.scale)
    if is_contiguous and not transposed and steps.step is None:
        target_offset = bounding_extent(place, chunk_shape, dtype.itemsize).offset
        return ReadRange(
            read.source_rank, read.source, part.extent.offset, part.extent.length, cast, target_offset, (), None
        )
    strides = [0 if axis == NEW_AXIS else shard.strides[axis] for axis in part.axes]
    index = list(place.as_index())
    length = part.extent.length
    if steps.step is not None:
        axis, beyond = steps.step.axis, steps.count - 1
        strides[axis] = steps.step.stride_bytes
        index[axis] = slice(place.start[axis], place.stop[axis] + steps.step.elements * beyond, steps.step.elements)
        length += steps.step.stride_bytes * beyond
    return ReadRange(
        *(read.source_rank, read.source, part.extent.offset, length, cast, 0), tuple(index), tuple(strides), transposed
    )


def _scaled_read_range(part: _Part, scale: ReadScale) -> ReadRange:
    box, read = part.source_box, part.read
    start = tuple(low + offset for low, offset in zip(box.start, scale.shard_start, strict=True))
    scaled_strides = SourceShard(box.shape, SCALED).strides
    strides = tuple(0 if axis == NEW_AXIS else scaled_strides[axis] for axis in part.axes)
    extent, scaled = part.extent, ScaledBox(scale.scale, start, box.shape, part.shard.strides)
    return ReadRange(
        *(read.source_rank, read.source, extent.offset, extent.length, SCALED, 0, part.place.as_index(), strides),
        *(reorders(read.axes), scaled),
    )


def _boxes_worth_a_read(region: TensorSlice, shard: SourceShard, limits: ReadLimits) -> Iterator[TensorSlice]:
    """Split a region of a source shard into boxes that are each worth one read."""
    too_long = bounding_extent(region, shard.shape, shard.dtype.itemsize).length > limits.range_bytes
    if not too_long and not any(gap > limits.gap_bytes for _, gap in _gaps(region, shard)):
        yield region
        return
    axis = next(axis for axis, length in enumerate(region.shape) if length > 1)
    step = max(1, limits.range_bytes // shard.strides[axis]) if too_long else 1
    for start in range(region.start[axis], region.stop[axis], step):
        low, high = list(region.start), list(region.stop)
        low[axis], high[axis] = start, min(start + step, region.stop[axis])
        yield from _boxes_worth_a_read(TensorSlice(tuple(low), tuple(high)), shard, limits)


def _gaps(region: TensorSlice, shard: SourceShard) -> Iterator[tuple[int, int]]:
    """Count and size in bytes of the gaps inside a region of a source shard, axis by axis from the last."""
    strides = row_major_strides(shard.shape)
    inner_elements = 1
    for axis in range(len(shard.shape) - 1, -1, -1):
        length = region.shape[axis]
        if length > 1 and strides[axis] > inner_elements:
            yield (
                math.prod(region.shape[:axis]) * (length - 1),
                (strides[axis] - inner_elements) * shard.dtype.itemsize,
            )
        inner_elements += (length - 1) * strides[axis]
