"""The generated values: the same for every sharding, and different wherever it matters."""

import numpy as np
import pytest

from benchmarks.models import Parameter, Side, blocks, cut_by, transformer
from reshard.core.tensor.slices import TensorSlice


def values(parameter: Parameter, box: TensorSlice) -> np.ndarray:
    return np.concatenate(list(blocks(parameter, box))).view(np.float32).reshape(box.shape)


@pytest.mark.parametrize("shape", [(6, 8), (48,), (2**21 + 4, 2), (3, 2**21)], ids=str)
def test_a_shard_is_a_piece_of_the_whole(shape: tuple[int, ...]) -> None:
    parameter = Parameter("w", shape, cut_by(0, 1, len(shape)), cut_by(0, 1, len(shape)))
    whole = values(parameter, TensorSlice.whole(shape))
    box = TensorSlice(tuple(length // 3 for length in shape), tuple(length - 1 for length in shape))
    assert values(parameter, box).tobytes() == whole[box.as_index()].tobytes()


def test_rows_columns_and_parameters_differ() -> None:
    layout = cut_by(0, 1)
    first, second = (values(Parameter(n, (64, 64), layout, layout), TensorSlice.whole((64, 64))) for n in "ab")
    assert len({row.tobytes() for whole in (first, second) for row in (*whole, *whole.T)}) == 2 * (64 + 64)


def test_the_transformers_shards_fill_it_and_its_replicas_are_known() -> None:
    model = transformer(hidden=16, layers=2, feed_forward=32, vocabulary=64)
    assert model.first_with_same_content(Side.SOURCE) == {rank: rank % 4 for rank in range(8)}
    assert model.first_with_same_content(Side.TARGET) == {rank: rank for rank in range(4)}
    for parameter in model.parameters:
        if len(parameter.shape) == 2:
            filled = np.zeros(parameter.shape, int)
            for rank in model.ranks(Side.TARGET):
                filled[parameter.box(Side.TARGET, rank).as_index()] += 1
            assert (filled == 1).all(), parameter.name
