"""The read ranges that fill a chunk of a target shard. Pure: nothing is read here.

A *read range* is a run of bytes of a source shard that is worth one read, and the place of its elements in the chunk.
It may contain gaps of unwanted bytes: reading through a narrow gap costs less than another read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from reshard.core.errors import ConversionError
from reshard.core.plan.model import ParameterPlan, ReadItem
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import SCALED, DType
from reshard.core.tensor.segments import NEW_AXIS, Piece, reorders
from reshard.core.tensor.slices import (
    Extent,
    Shape,
    TensorSlice,
    bounding_extent,
    contiguous_axis,
    row_major_strides,
)
from reshard.core.tensor.value_changes import Adaptation, BlockScale, Increase, Zeroing
from reshard.core.transfer.file_blocks import Chunk


class ValueChange(Protocol):
    """What becomes of the values of a parameter."""

    def __call__(self, values: np.ndarray, dtype: DType, start: Shape, out: np.ndarray | None = None) -> np.ndarray:
        """Return the bits of what the values of a box become.

        Args:
            values: their bits.
            dtype: their element type.
            start: the box's first index.
            out: where to put the result, an array like `values`, without overlap; by default it may be any array.
        """


def gap_cost_bytes(plan: ConversionPlan, parameter: ParameterPlan, gap_bytes: int) -> int:
    """Bytes that a target shard costs beyond its own because it takes parts of the sources' rows.

    A gap between two wanted runs costs its bytes; one wider than `gap_bytes` costs another read, worth `gap_bytes`. The
    gaps of stepped boxes do not count: other parameters want their bytes, not other ranks.
    """
    return sum(
        gap.count * min(gap.size_bytes, gap_bytes)
        for read in parameter.reads
        for gap in _gaps(read.source_box, source_shard(plan, parameter, read))
        if not gap.is_step
    )


class SourceShard(Record):
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
    scale = read.changes.scale
    if scale is not None and scale.is_packed:
        return SourceShard(source.shape, source.dtype)  # of values; half as many bytes
    return SourceShard(plan.source_entry(read.source_rank, source.name).shape, source.dtype)


class ReadLimits(Record):
    """Upper bounds in bytes: of a single read, and of a gap worth reading through."""

    range_bytes: int
    gap_bytes: int


class ReadRange(Record, dict=True):
    """A run of bytes of a source shard that is worth one read, and the place of its elements in a chunk.

    Attributes:
        source_rank: the rank that holds the shard.
        source: number of the source parameter.
        offset: first byte in the shard.
        dtype: element type, if the values are to be cast or changed; None if they are copied.
        target_offset: first byte in the chunk, if every byte is wanted, in order.
        index: the chunk's elements that are filled, otherwise; perhaps in steps.
        strides: bytes between wanted elements, along the chunk's axes; None if every byte is wanted.
        transposed: True if the chunk's axes are in another order.
        source_box: the box of the source whose values are changed by their places first, if any are; `strides` are then
            those of the changed values.
        each: what becomes of each value after that, before it is cast.
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
    source_box: "ScaledBox | AdaptedBox | None" = None
    each: tuple[Increase | Zeroing, ...] = ()

    @cached_property
    def is_verbatim(self) -> bool:
        """True if the bytes read are the chunk's bytes, unchanged and in order."""
        return self.strides is None and self.dtype is None


class ScaledBox(Record):
    """Values that are multiplied with their blocks' factors.

    Attributes:
        start: first index of the box in the whole matrix.
        shape: shape of the box; of its bytes, if values are two a byte.
        strides: bytes between neighbors in the bytes read.
        skipped_bytes: scaled values before the first wanted one.
    """

    scale: BlockScale
    start: Shape
    shape: Shape
    strides: Shape
    skipped_bytes: int = 0


class AdaptedBox(Record):
    """Values that an adapter changes.

    Attributes:
        dtype: their element type, which they keep.
        start: first index of the box in the whole tensor.
        shape: shape of the box.
        strides: bytes between neighbors in the bytes read.
    """

    dtype: DType
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
    found: list[ReadRange] = []
    filled = 0
    for read in reads:
        shard = shard_of(read)
        axes = tuple(range(len(shard.shape))) if read.axes is None else read.axes
        target = read.target_box
        piece = Piece(read.source, read.source_box, axes, target.start, steps=target.steps).in_target(chunk.box)
        if piece is not None:
            filled += math.prod(piece.shape)
            parts = _parts_worth_a_read(piece, shard, limits)
            found.extend(_read_range(part, read, shard, chunk.box, dtype) for part in parts)
    if filled != chunk.box.size:
        raise ConversionError(
            f"parameter {chunk.name!r}: {filled} of the {chunk.box.size} elements of {chunk.box} have a source. "
            "This is a bug in reshard"
        )
    return tuple(found)


def _read_range(part: Piece, read: ReadItem, shard: SourceShard, chunk_box: TensorSlice, dtype: DType) -> ReadRange:
    place = part.target_box.relative_to(chunk_box)
    cast = shard.dtype if shard.dtype != dtype or read.changes.each else None
    match read.changes.by_place:
        case BlockScale(is_packed=True) as scale:
            return _packed_read_range(part, place, read, shard, scale)
        case BlockScale() as scale:
            return _scaled_read_range(part, place, read, shard, scale)
        case Adaptation():
            return _adapted_read_range(part, place, read, shard, cast)
    extent = bounding_extent(part.box, shard.shape, shard.dtype.itemsize)
    is_contiguous = contiguous_axis(part.box, shard.shape) == 0 and contiguous_axis(place, chunk_box.shape) == 0
    if not is_contiguous or reorders(read.axes):
        return _strided_read_range(part, place, read, extent, shard.strides, cast)
    return ReadRange(
        read.source_rank,
        read.source,
        extent.offset,
        extent.length,
        dtype=cast,
        target_offset=bounding_extent(place, chunk_box.shape, dtype.itemsize).offset,
        index=(),
        strides=None,
        each=read.changes.each,
    )


def _strided_read_range(
    part: Piece,
    place: TensorSlice,
    read: ReadItem,
    extent: Extent,
    strides: Shape,
    dtype: DType | None,
    source_box: ScaledBox | AdaptedBox | None = None,
) -> ReadRange:
    """A range some of whose elements are wanted, or in another order.

    `strides` are those of the array that the elements are taken from.
    """
    return ReadRange(
        read.source_rank,
        read.source,
        extent.offset,
        extent.length,
        dtype=dtype,
        target_offset=0,
        index=place.as_index(),
        strides=_strides_along(part.axes, part.box, strides),
        transposed=reorders(read.axes),
        source_box=source_box,
        each=read.changes.each,
    )


def _scaled_read_range(
    part: Piece,
    place: TensorSlice,
    read: ReadItem,
    shard: SourceShard,
    scale: BlockScale,
) -> ReadRange:
    box = part.box.bounds
    extent = bounding_extent(box, shard.shape, shard.dtype.itemsize)
    strides = SourceShard(box.shape, SCALED).strides
    scaled = ScaledBox(scale, _in_whole(box, read), box.shape, shard.strides)
    return _strided_read_range(part, place, read, extent, strides, SCALED, scaled)


def _adapted_read_range(
    part: Piece,
    place: TensorSlice,
    read: ReadItem,
    shard: SourceShard,
    cast: DType | None,
) -> ReadRange:
    box = part.box.bounds
    extent = bounding_extent(box, shard.shape, shard.dtype.itemsize)
    strides = SourceShard(box.shape, shard.dtype).strides
    adapted = AdaptedBox(shard.dtype, _in_whole(box, read), box.shape, shard.strides)
    return _strided_read_range(part, place, read, extent, strides, cast, adapted)


def _packed_read_range(
    part: Piece,
    place: TensorSlice,
    read: ReadItem,
    shard: SourceShard,
    scale: BlockScale,
) -> ReadRange:
    """The range of values that are two a byte along the last axis; the shard is whole."""
    bounds = part.box.bounds
    box = TensorSlice(
        (*bounds.start[:-1], bounds.start[-1] // 2 * 2), (*bounds.stop[:-1], -(-bounds.stop[-1] // 2) * 2)
    )
    in_bytes = SourceShard((*shard.shape[:-1], shard.shape[-1] // 2), shard.dtype)
    packed = TensorSlice((*box.start[:-1], box.start[-1] // 2), (*box.stop[:-1], box.stop[-1] // 2))
    extent = bounding_extent(packed, in_bytes.shape, shard.dtype.itemsize)
    strides = SourceShard(box.shape, SCALED).strides
    skipped_bytes = (bounds.start[-1] - box.start[-1]) * SCALED.itemsize
    scaled = ScaledBox(scale, box.start, packed.shape, in_bytes.strides, skipped_bytes)
    return _strided_read_range(part, place, read, extent, strides, SCALED, scaled)


def _in_whole(box: TensorSlice, read: ReadItem) -> Shape:
    """The first index of a box of the source shard in the whole tensor."""
    return tuple(low + offset for low, offset in zip(box.start, read.shard_start, strict=True))


def _strides_along(axes: Shape, box: TensorSlice, strides: Shape) -> Shape:
    """Bytes between neighbors of a box along target axes; `strides` are those of its array."""
    return tuple(0 if axis == NEW_AXIS else strides[axis] * box.distances[axis] for axis in axes)


def _parts_worth_a_read(piece: Piece, shard: SourceShard, limits: ReadLimits) -> Iterator[Piece]:
    """Split a piece of a source shard into parts that are each worth one read."""
    box = piece.box
    too_long = bounding_extent(box, shard.shape, shard.dtype.itemsize).length > limits.range_bytes
    if not too_long and not any(gap.size_bytes > limits.gap_bytes for gap in _gaps(box, shard)):
        yield piece
        return
    axis = next(axis for axis, length in enumerate(box.shape) if length > 1)
    distance = box.distances[axis]
    step = distance * max(1, limits.range_bytes // (shard.strides[axis] * distance)) if too_long else distance
    for start in range(box.start[axis], box.stop[axis], step):
        low, high = list(box.start), list(box.stop)
        low[axis], high[axis] = start, min(start + step, box.stop[axis])
        part = piece.in_source(TensorSlice(tuple(low), tuple(high)))
        if part is not None:
            yield from _parts_worth_a_read(part, shard, limits)


class _Gaps(Record):
    """Equal gaps between the wanted runs of a box, along one axis; `is_step`: the box is stepped there."""

    count: int
    size_bytes: int
    is_step: bool


def _gaps(box: TensorSlice, shard: SourceShard) -> Iterator[_Gaps]:
    """Yield the gaps inside a box of a source shard, axis by axis from the last."""
    shape, distances = box.shape, box.distances
    strides = row_major_strides(shard.shape)
    inner_elements = 1
    for axis in range(len(shard.shape) - 1, -1, -1):
        length, between = shape[axis], strides[axis] * distances[axis]
        if length > 1 and between > inner_elements:
            gap_bytes = (between - inner_elements) * shard.dtype.itemsize
            yield _Gaps(math.prod(shape[:axis]) * (length - 1), gap_bytes, is_step=distances[axis] > 1)
        inner_elements += (length - 1) * between
