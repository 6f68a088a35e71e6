from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.tensor.tiling import TILE_ELEMENTS, copy_transposed, tile_values, tiles


@settings(max_examples=30)
@given(st.permutations(range(3)), st.tuples(*[st.integers(0, 70)] * 3))
def test_every_element_is_copied(axes: list[int], shape: tuple[int, ...]) -> None:
    source = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape).transpose(axes)
    target = np.zeros(source.shape, np.uint32)
    copy_transposed(source, target)
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("shape", [(1000, 1000), (3, 3, 200, 500), (1, 10**6), (10**6,), (70000, 1, 2)])
def test_tiles_are_small_and_fill_the_array_once(shape: tuple[int, ...]) -> None:
    target = np.zeros(shape, np.uint8)
    source = np.zeros(shape[::-1], np.uint8).T
    for index in tiles(source, target):
        assert 0 < target[index].size <= TILE_ELEMENTS
        target[index] += 1
    assert target.all()
    assert target.max() == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64])
@pytest.mark.parametrize("shape", [(300, 1, 512), (2, 600, 130), (70, 20, 33), (1, 20000, 2), (3, 5, 4096)])
def test_tiles_of_any_order_hold_the_source_s_values(shape: tuple[int, ...], dtype: type) -> None:
    wide = np.random.default_rng(1).integers(0, 255, (*shape[:-1], 2 * shape[-1]), dtype)
    for axes in permutations(range(3)):
        source = wide[..., 1 : 1 + shape[-1]].transpose(axes)
        target: np.ndarray = np.zeros(source.shape, dtype)
        for index, values in tile_values(source, target):
            np.testing.assert_array_equal(values, source[index])
            assert values.base is not None
            assert np.shares_memory(values, wide) or values.base.size <= 2 * TILE_ELEMENTS
            target[index] = values
        np.testing.assert_array_equal(target, source)


def test_a_scalar_is_copied() -> None:
    target = np.zeros((), np.uint16)
    copy_transposed(np.array(7, np.uint16), target)
    assert target == 7
