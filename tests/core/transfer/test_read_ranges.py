"""Read ranges and their scatter: whatever the boxes, axes and limits, a chunk is filled as numpy fills it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import ConversionError
from reshard.core.plan.model import ParameterPlan, ReadItem, SourceTensor
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import TensorSlice
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import ReadLimits, ReadRange, SourceShard, chunk_read_ranges
from reshard.core.transfer.scatter import scatter_values

INT = dtype_from_name("Int32")
SOURCE = np.arange(6 * 5 * 4, dtype=np.int32).reshape(6, 5, 4)
SHARD = SourceShard(SOURCE.shape, INT)


def ranges_of(chunk: Chunk, read: ReadItem, limits: ReadLimits) -> tuple[ReadRange, ...]:
    return chunk_read_ranges(chunk, [read], lambda _: SHARD, INT, limits)


def filled(chunk: Chunk, read: ReadItem, ranges: tuple[ReadRange, ...]) -> np.ndarray:
    """The chunk, after every range was read and scattered."""
    parameter = ParameterPlan("w", INT, read.target_box, (read,), (SourceTensor("w", INT, SOURCE.shape, ()),))
    buffer = np.full(chunk.size_bytes + chunk.position, 255, np.uint8)
    data = np.frombuffer(SOURCE.tobytes(), np.uint8)
    for read_range in ranges:
        run = data[read_range.offset : read_range.offset + read_range.length]
        if read_range.is_verbatim:
            start = chunk.position + read_range.target_offset
            buffer[start : start + read_range.length] = run
        else:
            assert scatter_values(run, read_range, chunk, parameter, buffer) is None
    return buffer[chunk.position :].view(np.int32).reshape(chunk.box.shape)


def draw_box(draw: st.DrawFn, shape: tuple[int, ...], *, stepped: bool = False) -> TensorSlice:
    edges = [sorted(draw(st.sets(st.integers(0, size), min_size=2, max_size=2))) for size in shape]
    box = TensorSlice(tuple(low for low, _ in edges), tuple(high for _, high in edges))
    if not stepped:
        return box
    steps = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in shape)
    counts = tuple(-(-length // step) for length, step in zip(box.shape, steps, strict=True))
    return TensorSlice.stepped(box.start, counts, steps)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Chunk, ReadItem, ReadLimits]:
    source_box = draw_box(draw, SOURCE.shape, stepped=True)
    axes = draw(st.none() | st.permutations(range(3)).map(tuple))
    shape = source_box.shape if axes is None else tuple(source_box.shape[axis] for axis in axes)
    target_box = TensorSlice((0, 0, 0), shape)
    box = draw_box(draw, shape)
    chunk = Chunk("w", box, draw(st.sampled_from([0, 4, 12])), box.size * INT.itemsize)
    limits = ReadLimits(draw(st.sampled_from([4, 20, 64, 10**6])), draw(st.sampled_from([0, 8, 10**6])))
    return chunk, ReadItem(0, source_box, target_box, axes=axes), limits


@given(cases())
def test_a_chunk_is_filled_as_numpy_fills_it(case: tuple[Chunk, ReadItem, ReadLimits]) -> None:
    chunk, read, limits = case
    shard = SOURCE[read.source_box.as_index()]
    want = (shard if read.axes is None else shard.transpose(read.axes))[chunk.box.as_index()]
    ranges = ranges_of(chunk, read, limits)
    assert (filled(chunk, read, ranges) == want).all()
    assert all(read_range.length <= max(limits.range_bytes, INT.itemsize) for read_range in ranges)
    if limits.gap_bytes == 0 and read.axes is None:
        assert sum(read_range.length for read_range in ranges) == chunk.size_bytes, "no gap is read through"


@given(st.data(), cases())
def test_several_stepped_reads_fill_a_chunk_as_numpy_does(
    data: st.DataObject, case: tuple[Chunk, ReadItem, ReadLimits]
) -> None:
    _, read, limits = case
    along = data.draw(st.integers(0, 2))
    shape = read.target_box.shape
    fused = tuple(2 * length if axis == along else length for axis, length in enumerate(shape))
    steps = tuple(2 if axis == along else 1 for axis in range(3))
    starts = [tuple(number if axis == along else 0 for axis in range(3)) for number in range(2)]
    reads = [ReadItem(0, read.source_box, TensorSlice.stepped(start, shape, steps), axes=read.axes) for start in starts]
    box = data.draw(st.composite(draw_box)(fused))
    chunk = Chunk("w", box, 8, box.size * INT.itemsize)
    values = SOURCE[read.source_box.as_index()]
    values = values if read.axes is None else values.transpose(read.axes)
    want = np.repeat(values, 2, along)[box.as_index()]
    ranges = chunk_read_ranges(chunk, reads, lambda _: SHARD, INT, limits)
    assert (filled(chunk, read, ranges) == want).all()


def test_every_other_row_is_one_read() -> None:
    rows = TensorSlice.stepped((1, 0, 0), (3, 5, 4), (2, 1, 1))
    chunk = Chunk("w", TensorSlice.whole(rows.shape), 0, rows.size * INT.itemsize)
    read = ReadItem(0, rows, TensorSlice.whole(rows.shape))
    [one] = ranges_of(chunk, read, ReadLimits(10**6, gap_bytes=80))
    assert (one.offset, one.length) == (80, 5 * 80)
    assert len(ranges_of(chunk, read, ReadLimits(10**6, gap_bytes=79))) == 3
    assert len(ranges_of(chunk, read, ReadLimits(3 * 80, gap_bytes=80))) == 3


def test_reads_that_leave_elements_out_are_a_bug() -> None:
    half = TensorSlice((0, 0, 0), (3, 5, 4))
    chunk = Chunk("w", TensorSlice.whole(SOURCE.shape), 0, SOURCE.nbytes)
    with pytest.raises(ConversionError, match=r"'w': 60 of the 120 elements .* have a source\. This is a bug"):
        ranges_of(chunk, ReadItem(0, half, half), ReadLimits(100, 100))


def test_columns_are_read_through_narrow_gaps() -> None:
    box = TensorSlice((0, 0, 0), (6, 5, 3))
    chunk = Chunk("w", TensorSlice.whole(box.shape), 0, box.size * INT.itemsize)
    read = ReadItem(0, box, TensorSlice.whole(box.shape))
    assert len(ranges_of(chunk, read, ReadLimits(10**6, gap_bytes=4))) == 1
    assert len(ranges_of(chunk, read, ReadLimits(10**6, gap_bytes=3))) == 6 * 5
