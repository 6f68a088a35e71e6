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


def draw_box(draw: st.DrawFn, shape: tuple[int, ...]) -> TensorSlice:
    edges = [sorted(draw(st.sets(st.integers(0, size), min_size=2, max_size=2))) for size in shape]
    return TensorSlice(tuple(low for low, _ in edges), tuple(high for _, high in edges))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Chunk, ReadItem, ReadLimits]:
    source_box = draw_box(draw, SOURCE.shape)
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
