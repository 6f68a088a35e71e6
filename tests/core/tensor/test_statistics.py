"""Statistics of blocks are those that numpy gives for all of an array."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from reshard.core.tensor import statistics
from reshard.core.tensor.statistics import Statistics

NUMBERS = [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.bool_]


def of(array: np.ndarray, length: int) -> Statistics:
    found = Statistics()
    for start in range(0, array.size, length):
        found.add(array.reshape(-1)[start : start + length])
    return found


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from([1, 3, 1000]), st.sampled_from([2, 2**18]))
def test_they_are_numpys(data: st.DataObject, kind: type, length: int, part: int) -> None:
    array = data.draw(st_numpy.arrays(kind, st.integers(0, 20), elements=_moderate(kind)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_PART", part)
        found = of(array, length)
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    assert found.count == array.size
    assert found.nan == np.isnan(numbers).sum()
    assert found.positive_inf == (numbers == np.inf).sum()
    assert found.negative_inf == (numbers == -np.inf).sum()
    assert found.zeros == (numbers == 0).sum()
    if not finite.size:
        assert (found.least, found.greatest, found.mean, found.deviation) == (None, None, None, None)
        return
    assert (found.least, found.greatest) == (finite.min(), finite.max())
    assert found.mean is not None
    assert found.deviation is not None
    assert math.isclose(found.mean, finite.mean(), rel_tol=1e-9, abs_tol=1e-9 * np.abs(finite).max())
    assert math.isclose(found.deviation, finite.std(), rel_tol=1e-6, abs_tol=1e-6 * np.abs(finite).max())


def _moderate(kind: type) -> st.SearchStrategy[float] | None:
    """Numbers whose squares float64 holds; NaN and Inf."""
    if kind is not np.float64:
        return None
    return st.one_of(st.floats(-1e100, 1e100), st.sampled_from([math.nan, math.inf, -math.inf]))


def test_whole_numbers_are_exact_where_float64_is_not() -> None:
    found = of(np.array([2**62 + 1, -(2**62) - 1], np.int64), 1)
    assert (found.least, found.greatest) == (-(2**62) - 1, 2**62 + 1)


def test_the_mean_of_the_largest_numbers_is_finite() -> None:
    found = of(np.full(4, 1.7e308), 4)
    assert found.mean == pytest.approx(1.7e308)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes_count_as_numbers(name: str) -> None:
    array = np.array([0, 1, 2, np.nan], getattr(ml_dtypes, name))
    found = of(array, 2)
    assert (found.nan, found.zeros, found.mean, found.greatest) == (1, 1, 1.0, 2.0)
