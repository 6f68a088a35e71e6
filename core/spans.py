"""Which runs of bytes of source shards fill a part of a target shard. Pure: nothing is read here.

A *span* is a run of bytes of a source shard that is worth one read, and where its elements go. A run may have gaps in
it that nobody wants: reading through a narrow one costs less than another read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.blocks import Part
from core.errors import ConversionError
from core.plan import ConversionPlan, ParameterPlan, ReadItem
from core.slices import Shape, TensorSlice, byte_span, contiguous_axis, row_major_strides


def gap_cost_bytes(plan: ConversionPlan, parameter: ParameterPlan, gap_bytes: int) -> int:
    """What a target shard costs on top of its own bytes because it takes parts of the sources' rows.

    That is the bytes in the gaps between those parts, or, of those wider than `gap_bytes`, what another read costs.
    """
    return sum(
        count * min(between_bytes, gap_bytes)
        for read in parameter.reads
        for count, between_bytes in _gaps(
            read.source_box,
            plan.source_entry(read.source_rank, parameter.sources[read.source].name).shape,
            parameter.sources[read.source].dtype.itemsize,
        )
    )


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
        target_offset: first byte in the part, if the run is wanted as it is.
        index: elements of the part that are filled, else.
        strides: bytes between the wanted elements in the run; None if it is wanted as it is.
    """

    source_rank: int
    source: int
    offset: int
    length: int
    target_offset: int
    index: tuple[Any, ...]
    strides: Shape | None


def part_spans(
    part: Part,
    reads: Sequence[ReadItem],
    source_shape: Callable[[ReadItem], Shape],
    itemsize: int,
    limits: ReadLimits,
) -> tuple[Span, ...]:
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
            shape = source_shape(read)
            region = _moved(shared, read.target_box, read.source_box)
            for source_box in _boxes_worth_a_read(region, shape, itemsize, limits):
                place = _moved(source_box, region, shared.relative_to(part.box))
                spans.append(_span(read, source_box, shape, place, part.box.shape, itemsize))
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
    read: ReadItem, source_box: TensorSlice, source_shape: Shape, place: TensorSlice, part_shape: Shape, itemsize: int
) -> Span:
    run = byte_span(source_box, source_shape, itemsize)
    if contiguous_axis(source_box, source_shape) == 0 and contiguous_axis(place, part_shape) == 0:
        target_offset = byte_span(place, part_shape, itemsize).offset
        return Span(read.source_rank, read.source, run.offset, run.length, target_offset, (), None)
    strides = tuple(stride * itemsize for stride in row_major_strides(source_shape))
    return Span(read.source_rank, read.source, run.offset, run.length, 0, place.as_index(), strides)


def _boxes_worth_a_read(
    region: TensorSlice, shard_shape: Shape, itemsize: int, limits: ReadLimits
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
