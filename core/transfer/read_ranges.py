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
from reshard.core.plan.model import ParameterPlan, ReadItem
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape, TensorSlice, bounding_extent, contiguous_axis, row_major_strides
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
        index: the chunk's elements that are filled, otherwise.
        strides: bytes between wanted elements, along the chunk's axes; None if every byte is wanted.
        transposed: True if the chunk's axes are in another order.
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

    @cached_property
    def is_verbatim(self) -> bool:
        """True if the bytes read are the chunk's bytes, unchanged and in order."""
        return self.strides is None and self.dtype is None


def chunk_read_ranges(
    chunk: Chunk,
    reads: Sequence[ReadItem],
    shard_of: Callable[[ReadItem], SourceShard],
    dtype: DType,
    limits: ReadLimits,
) -> tuple[ReadRange, ...]:
    """Return the read ranges that fill a chunk of element type `dtype` exactly once."""
    ranges = []
    filled = 0
    for read in reads:
        wanted = read.target_box.intersect(chunk.box)
        if wanted is not None:
            filled += wanted.size
            shard = shard_of(read)
            # the source's axis i is the target's axis `source_axes[i]`
            source_axes = read.axes and tuple(sorted(range(len(read.axes)), key=read.axes.__getitem__))
            region = wanted.relative_to(read.target_box).reordered(source_axes).shifted(read.source_box.start)
            place_of_region = wanted.relative_to(chunk.box).reordered(source_axes)
            for source_box in _boxes_worth_a_read(region, shard, limits):
                place = source_box.relative_to(region).shifted(place_of_region.start).reordered(read.axes)
                ranges.append(_read_range(read, source_box, shard, place, chunk.box.shape, dtype))
    if filled != chunk.box.size:
        raise ConversionError(
            f"parameter {chunk.name!r}: {filled} of the {chunk.box.size} elements of {chunk.box} have a source. "
            "This is a bug in reshard"
        )
    return tuple(ranges)


def _read_range(
    read: ReadItem, source_box: TensorSlice, shard: SourceShard, place: TensorSlice, chunk_shape: Shape, dtype: DType
) -> ReadRange:
    run = bounding_extent(source_box, shard.shape, shard.dtype.itemsize)
    cast = shard.dtype if shard.dtype != dtype else None
    transposed = read.axes is not None
    if not transposed and contiguous_axis(source_box, shard.shape) == 0 and contiguous_axis(place, chunk_shape) == 0:
        target_offset = bounding_extent(place, chunk_shape, dtype.itemsize).offset
        return ReadRange(read.source_rank, read.source, run.offset, run.length, cast, target_offset, (), None)
    strides = shard.strides if read.axes is None else tuple(shard.strides[axis] for axis in read.axes)
    return ReadRange(
        read.source_rank, read.source, run.offset, run.length, cast, 0, place.as_index(), strides, transposed
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
