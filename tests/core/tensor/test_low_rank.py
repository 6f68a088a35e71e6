"""Low-rank additions, held against a chain of fused multiply-adds for each element."""

import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.low_rank import LowRank, with_low_rank

TYPES = {"BFloat16": ml_dtypes.bfloat16, "Float16": np.float16, "Float32": np.float32}


def chain(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The product, one exact multiply-add after the other, each rounded to float32."""
    total = np.zeros((len(b), a.shape[1]), np.float32)
    for row, column in np.ndindex(total.shape):
        found = np.float32(0)
        for left, right in zip(b[row], a[:, column], strict=True):
            exact = Fraction(float(left)) * Fraction(float(right)) + Fraction(float(found))
            found = rounded(exact)
        total[row, column] = found
    return total


def rounded(exact: Fraction) -> np.float32:
    """The nearest float32, ties to even."""
    near = np.float32(float(exact))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.uint32)) & 1))


def random_case(name: str, rank: int, size: float) -> tuple[np.ndarray, LowRank]:
    generator = np.random.default_rng(rank)
    values = generator.normal(0, 0.02, (23, 31)).astype(TYPES[name])
    b = generator.normal(0, size, (23, rank)).astype(np.float32)
    a = generator.normal(0, 0.1, (rank, 31)).astype(np.float32)
    return values, LowRank(b, a, 1.5)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("rank", "size"), [(1, 0.1), (4, 0.02), (16, 0.002), (16, 2.0)])
def test_every_element_is_the_chains(name: str, rank: int, size: float) -> None:
    values, added = random_case(name, rank, size)
    found = with_low_rank(values.view(f"u{values.itemsize}"), dtype_from_name(name), (0, 0), added)
    sums = values.astype(np.float32) + chain(added.b, added.a) * np.float32(1.5)
    assert found.tobytes() == sums.astype(values.dtype).tobytes()


def test_a_long_rank_is_two_chains() -> None:
    values, added = random_case("Float32", 256, 0.002)
    found = with_low_rank(values.view("u4"), dtype_from_name("Float32"), (0, 0), added)
    halves = chain(added.b[:, :128], added.a[:128]) + chain(added.b[:, 128:], added.a[128:])
    assert found.tobytes() == (values + halves * np.float32(1.5)).tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_a_box_has_the_elements_of_the_whole(name: str) -> None:
    generator = np.random.default_rng(7)
    values = generator.normal(0, 0.02, (300, 700)).astype(TYPES[name])
    b, a = (generator.normal(0, 0.05, shape).astype(np.float32) for shape in ((300, 8), (8, 700)))
    added, bits, dtype = LowRank(b, a, -0.5), values.view(f"u{values.itemsize}"), dtype_from_name(name)
    whole = with_low_rank(bits, dtype, (0, 0), added)
    for rows, columns in (
        (slice(0, 1), slice(0, 700)),
        (slice(7, 299), slice(3, 5)),
        (slice(100, 250), slice(250, 600)),
    ):
        box = with_low_rank(bits[rows, columns], dtype, (rows.start, columns.start), added)
        assert (box == whole[rows, columns]).all()


def test_values_that_are_rounded_twice() -> None:
    values, added = random_case("BFloat16", 4, 0.02)
    twice = LowRank(added.b, added.a, added.scale, rounds_twice=True)
    found = with_low_rank(values.view("u2"), dtype_from_name("BFloat16"), (0, 0), twice)
    delta = (chain(added.b, added.a) * np.float32(1.5)).astype(ml_dtypes.bfloat16)
    sums = values.astype(np.float32) + delta.astype(np.float32)
    assert found.tobytes() == sums.astype(ml_dtypes.bfloat16).tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_infinite_and_undefined_values_stay_where_they_are(name: str) -> None:
    values, added = random_case(name, 4, 0.02)
    values[0, :3] = [np.inf, -np.inf, np.nan]
    b = added.b.copy()
    b[5] = np.nan
    found = with_low_rank(values.view(f"u{values.itemsize}"), dtype_from_name(name), (0, 0), LowRank(b, added.a, 1.5))
    sums = found.view(values.dtype).astype(np.float32)
    assert sums[0, 0] == np.inf
    assert sums[0, 1] == -np.inf
    assert np.isnan(sums[0, 2])
    assert np.isnan(sums[5]).all()
    assert np.isfinite(np.delete(sums, 5, 0)[1:]).all()


def test_a_rank_larger_than_any_side_takes_little_memory() -> None:
    values = np.ones((128, 256), ml_dtypes.bfloat16)
    added = LowRank(np.zeros((128, 2**15), np.float32), np.zeros((2**15, 256), np.float32), 1.0)
    tracemalloc.start()
    try:
        found = with_low_rank(values.view("u2"), dtype_from_name("BFloat16"), (0, 0), added)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.tobytes() == values.tobytes()
    assert peak_bytes < 24 * 2**20
