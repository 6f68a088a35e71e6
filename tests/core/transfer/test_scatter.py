"""Casts of scattered values: overflows are counted, and indexed in the whole parameter."""

import numpy as np

from reshard.core.plan.model import ParameterPlan, ReadItem, SourceTensor
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import TensorSlice
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import ReadLimits, SourceShard, chunk_read_ranges
from reshard.core.transfer.scatter import scatter_values

FLOAT, HALF = dtype_from_name("Float32"), dtype_from_name("Float16")


def test_an_overflow_is_indexed_in_the_whole_parameter() -> None:
    values = np.ones((4, 6), np.float32)
    values[2, 3] = -1e6
    source, target = TensorSlice((1, 2), (4, 5)), TensorSlice.whole((3, 3))
    read = ReadItem(0, source, target)
    parameter = ParameterPlan("w", HALF, TensorSlice((10, 20), (13, 23)), (read,), (SourceTensor("w", FLOAT, (), ()),))
    chunk = Chunk("w", TensorSlice((1, 0), (3, 3)), 8, 12)
    shard = SourceShard(values.shape, FLOAT)
    ranges = chunk_read_ranges(chunk, [read], lambda _: shard, HALF, ReadLimits(1000, 1000))
    buffer = np.zeros(20, np.uint8)
    data = np.frombuffer(values.tobytes(), np.uint8)
    found = [
        scatter_values(data[item.offset : item.offset + item.length], item, chunk, parameter, buffer) for item in ranges
    ]
    [overflow] = [each for each in found if each is not None]
    assert (overflow.count, overflow.largest, overflow.first) == (1, -1e6, (11, 21))
    assert buffer[8:].view(np.float16).tolist() == [1, -np.inf, 1, 1, 1, 1]
    assert not buffer[:8].any()
