"""Which runs of bytes of source shards fill a part of a target shard. Pure: nothing is read here.

A *span* is a run of bytes of a source shard that is worth one read, and where its elements go. A run may have gaps in
it that nobody wants: reading through a narrow one costs less than another read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reshard.core.errors import ConversionError
from reshard.core.plan.plan import ConversionPlan, ParameterPlan, ReadItem
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape, TensorSlice, byte_span, contiguous_axis, row_major_strides
from reshard.core.transfer.file_blocks import Part


def gap_cost_bytes(plan: ConversionPlan, parameter: ParameterPlan, gap_bytes: int) -> int:
    """What a target shard costs on top of its own bytes because it takes parts of the sources' rows.

    That is the bytes in the gaps between those parts, or, of those wider than `gap_bytes`, what another read costs.
    """
    return sum(
        count * min(between_bytes, gap_bytes)
        for read in parameter.reads
        for count, between_bytes in _gaps(read.source_box, source_shard(plan, parameter, read))
    )


@dataclass(frozen=True)
class SourceShard:
    """What is read of a source parameter: its shape in one rank's file, and its element type."""

    shape: Shape
    dtype: DType

    @property
    def strides(self) -> Shape:
        """Bytes between neighbours along each axis."""
        return tuple(stride * self.dtype.itemsize for stride in row_major_strides(self.shape))


def source_shard(plan: ConversionPlan, parameter: ParameterPlan, read: ReadItem) -> SourceShard:
    """The shard that a read is of."""
    source = parameter.sources[read.source]
    return SourceShard(plan.source_entry(read.source_rank, source.name).shape, source.dtype)


@dataclass(frozen=True)
class ReadLimits:
    """The longest run to be read at once, and the widest gap inside it to be read through, in bytes."""

    run_bytes: int
    gap_bytes: int


@dataclass(frozen=True)
class Span:
    """A run of bytes of a source shard that is worth one read, and where its elements go in a part.

    Attributes:
        source_rank: whose shard.
        source: number of the source parameter.
        offset: first byte of the run in the shard.
        length: bytes of the run.
        dtype: element type of the run, if its values are to be cast; None if they are not.
        target_offset: first byte in the part, if all of the run is wanted, in its order.
        index: elements of the part that are filled, else.
        strides: bytes between the wanted elements in the run, along the part's axes; None if all of it is wanted.
        transposed: whether the part's axes are in another order.
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
    def is_as_wanted(self) -> bool:
        """Whether the bytes of the run are those of the part."""
        return self.strides is None and self.dtype is None


def part_spans(
    part: Part,
    reads: Sequence[ReadItem],
    shard_of: Callable[[ReadItem], SourceShard],
    dtype: DType,
    limits: ReadLimits,
) -> tuple[Span, ...]:
    """The spans that fill a part exactly once; `dtype` is the part's.

    Raises:
        ConversionError: the reads do not fill it, which is a bug.
    """
    spans = []
    filled = 0
    for read in reads:
        shared = read.target_box.intersect(part.box)
        if shared is not None:
            filled += shared.size
            shard = shard_of(read)
            region = _moved(_in_source_order(shared, read), _in_source_order(read.target_box, read), read.source_box)
            place_of_region = _in_source_order(shared.relative_to(part.box), read)
            for source_box in _boxes_worth_a_read(region, shard, limits):
                place = _in_target_order(_moved(source_box, region, place_of_region), read)
                spans.append(_span(read, source_box, shard, place, part.box.shape, dtype))
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


def _in_source_order(box: TensorSlice, read: ReadItem) -> TensorSlice:
    """A box of the target with its axes in the order that they have in the source."""
    if read.axes is None:
        return box
    target_axes = sorted(range(len(read.axes)), key=read.axes.__getitem__)
    return TensorSlice(tuple(box.start[axis] for axis in target_axes), tuple(box.stop[axis] for axis in target_axes))


def _in_target_order(box: TensorSlice, read: ReadItem) -> TensorSlice:
    """The reverse of it."""
    if read.axes is None:
        return box
    return TensorSlice(tuple(box.start[axis] for axis in read.axes), tuple(box.stop[axis] for axis in read.axes))


def _span(
    read: ReadItem, source_box: TensorSlice, shard: SourceShard, place: TensorSlice, part_shape: Shape, dtype: DType
) -> Span:
    run = byte_span(source_box, shard.shape, shard.dtype.itemsize)
    cast = shard.dtype if shard.dtype != dtype else None
    turned = _is_transposed(read)
    if not turned and contiguous_axis(source_box, shard.shape) == 0 and contiguous_axis(place, part_shape) == 0:
        target_offset = byte_span(place, part_shape, dtype.itemsize).offset
        return Span(read.source_rank, read.source, run.offset, run.length, cast, target_offset, (), None)
    strides = shard.strides if read.axes is None else tuple(shard.strides[axis] for axis in read.axes)
    return Span(read.source_rank, read.source, run.offset, run.length, cast, 0, place.as_index(), strides, turned)


def _is_transposed(read: ReadItem) -> bool:
    return read.axes is not None and read.axes != tuple(range(len(read.axes)))


def _boxes_worth_a_read(region: TensorSlice, shard: SourceShard, limits: ReadLimits) -> Iterator[TensorSlice]:
    """A region of a source shard as boxes that are each worth one read."""
    too_long = byte_span(region, shard.shape, shard.dtype.itemsize).length > limits.run_bytes
    if not too_long and not _has_wide_gaps(region, shard, limits.gap_bytes):
        yield region
        return
    axis = next(axis for axis, length in enumerate(region.shape) if length > 1)
    step = max(1, limits.run_bytes // shard.strides[axis]) if too_long else 1
    for start in range(region.start[axis], region.stop[axis], step):
        low, high = list(region.start), list(region.stop)
        low[axis], high[axis] = start, min(start + step, region.stop[axis])
        yield from _boxes_worth_a_read(TensorSlice(tuple(low), tuple(high)), shard, limits)


def _has_wide_gaps(region: TensorSlice, shard: SourceShard, gap_bytes: int) -> bool:
    """Whether a run over the whole region would read through gaps that are not worth it."""
    return any(gap > gap_bytes for _, gap in _gaps(region, shard))


def _gaps(region: TensorSlice, shard: SourceShard) -> Iterator[tuple[int, int]]:
    """The gaps inside a region of a source shard: how many, and how many bytes each, axis by axis from the last."""
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
