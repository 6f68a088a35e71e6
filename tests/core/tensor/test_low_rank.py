"""Low-rank additions, held against a chain of fused multiply-adds for each element."""

import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reshard.core.tensor import low_rank
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
    values, added = values[:4], LowRank(added.b[:4], added.a, 1.5)  # exact chains take their time
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


@pytest.mark.parametrize("name", ["BFloat16", "Float16"])
@pytest.mark.parametrize(("rank", "size"), [(4, 0.02), (8, 2.0)])
def test_values_that_are_rounded_twice(name: str, rank: int, size: float) -> None:
    values, added = random_case(name, rank, size)
    twice = LowRank(added.b, added.a, added.scale, rounds_twice=True)
    found = with_low_rank(values.view("u2"), dtype_from_name(name), (0, 0), twice)
    delta = (chain(added.b, added.a) * np.float32(1.5)).astype(values.dtype)
    sums = values.astype(np.float32) + delta.astype(np.float32)
    assert found.tobytes() == sums.astype(values.dtype).tobytes()


@pytest.mark.parametrize("rounds_twice", [False, True])
@pytest.mark.parametrize("name", ["BFloat16", "Float16"])
def test_sums_near_halfway_are_the_chains(name: str, rounds_twice: bool) -> None:
    generator = np.random.default_rng(11)
    b, a = generator.normal(0, 1, (1, 16)).astype(np.float32), generator.normal(0, 1, (16, 120)).astype(np.float32)
    digit = 2.0**-7 if name == "BFloat16" else 2.0**-10
    wanted = digit / 2 * (1 + digit / 2) if rounds_twice else digit / 2  # halfway, of the addition or of the sum
    a[15] = ((wanted - b[:, :15].astype(np.float64) @ a[:15]) / b[0, 15]).astype(np.float32)
    values = np.ones((1, 120), TYPES[name])
    found = with_low_rank(values.view("u2"), dtype_from_name(name), (0, 0), LowRank(b, a, 1.0, rounds_twice))
    delta = chain(b, a)
    sums = values.astype(np.float32) + (delta.astype(values.dtype).astype(np.float32) if rounds_twice else delta)
    assert found.tobytes() == sums.astype(values.dtype).tobytes()
    assert len(np.unique(found)) == 2


@pytest.mark.parametrize("rounds_twice", [False, True])
@pytest.mark.parametrize("name", ["BFloat16", "Float16"])
def test_sums_halfway_between_two_values_become_even(name: str, rounds_twice: bool) -> None:
    generator = np.random.default_rng(3)
    digits = 8 if name == "BFloat16" else 11
    values = generator.integers(-(2**digits), 2**digits, (200, 300)).astype(TYPES[name])
    b, a = (generator.integers(-3, 4, shape) * 0.5 for shape in ((200, 5), (5, 300)))
    added = LowRank(b.astype(np.float32), a.astype(np.float32), 1.0, rounds_twice)
    found = with_low_rank(values.view("u2"), dtype_from_name(name), (0, 0), added)
    sums = values.astype(np.float64) + b @ a
    assert len(np.unique(np.abs(sums.astype(values.dtype) - sums))) > 3
    assert found.tobytes() == sums.astype(np.float32).astype(values.dtype).tobytes()


@pytest.mark.parametrize("name", ["BFloat16", "Float16"])
@pytest.mark.parametrize("size", [2.0**-138, 2.0**-20])
def test_subnormal_values_are_the_chains(name: str, size: float) -> None:
    generator = np.random.default_rng(5)
    values = generator.normal(0, size, (12, 9)).astype(TYPES[name])
    b = generator.normal(0, 2.0**-60, (12, 4)).astype(np.float32)
    a = generator.normal(0, size * 2.0**60, (4, 9)).astype(np.float32)
    found = with_low_rank(values.view("u2"), dtype_from_name(name), (0, 0), LowRank(b, a, 1.5))
    sums = values.astype(np.float32) + chain(b, a) * np.float32(1.5)
    assert found.tobytes() == sums.astype(values.dtype).tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_sums_are_put_where_they_are_wanted(name: str) -> None:
    values, added = random_case(name, 16, 0.02)
    bits = values.view(f"u{values.itemsize}")
    room = np.zeros((2 * 23, 40), bits.dtype)
    place = room[::2, 4:35]
    assert with_low_rank(bits, dtype_from_name(name), (0, 0), added, place) is place
    assert (place == with_low_rank(bits, dtype_from_name(name), (0, 0), added)).all()
    place[...] = 0
    assert not room.any()


@pytest.mark.parametrize("name", ["BFloat16", "Float16"])
def test_large_factors_of_nothing_add_nothing(name: str) -> None:
    values, _ = random_case(name, 4, 0.02)
    b = np.zeros((23, 4), np.float32)
    a = np.full((4, 31), 3e38, np.float32)
    found = with_low_rank(values.view("u2"), dtype_from_name(name), (0, 0), LowRank(b, a, 1.0))
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_one_undefined_factor_makes_a_column_undefined(name: str) -> None:
    values, added = random_case(name, 4, 0.02)
    a = added.a.copy()
    a[2, 7] = np.nan
    found = with_low_rank(values.view(f"u{values.itemsize}"), dtype_from_name(name), (0, 0), LowRank(added.b, a, 1.5))
    sums = found.view(values.dtype).astype(np.float32)
    assert np.isnan(sums[:, 7]).all()
    assert np.isfinite(np.delete(sums, 7, 1)).all()


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


@pytest.mark.parametrize("rounds_twice", [False, True])
@pytest.mark.parametrize("name", ["BFloat16", "Float16"])
@pytest.mark.parametrize(
    ("value", "middle", "error"),
    [
        pytest.param(0.02, 0.001, 1e-6, id="sums of all kinds"),
        pytest.param(2.0**-14, -(2.0**-23), 1.02 * 2.0**-23, id="the border below a power of two, half as far away"),
        pytest.param(4 + 2.0**-5, 2.0**-6, 2.0**-23, id="sums that are rounded to a border of bfloat16"),
        pytest.param(4 + 2.0**-8, 2.0**-9, 2.0**-23, id="sums that are rounded to a border of float16"),
        pytest.param(0.0, 0, 2.0**-140, id="zeros of both signs"),
        pytest.param(-0.0, 0, 2.0**-140, id="zeros of both signs, added to a negative one"),
    ],
)
def test_products_that_are_as_wrong_as_they_may_be_do_not_show(
    value: float, middle: float, error: float, name: str, rounds_twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(17)
    a = (middle + generator.uniform(-3, 3, (1, 20000)) * error).astype(np.float32)
    multiply = low_rank._multiply

    def multiply_wrongly(b: np.ndarray, a: np.ndarray, out: np.ndarray) -> None:
        multiply(b, a, out)
        out += (generator.choice([-0.99, 0.99], out.shape) * error).astype(np.float32)

    monkeypatch.setattr(low_rank, "_multiply", multiply_wrongly)
    monkeypatch.setattr(low_rank._Box, "_product_errors", lambda _: np.full(20000, error, np.float32))
    values = np.full((1, 20000), value, TYPES[name])
    added = LowRank(np.ones((1, 1), np.float32), a, 1.0, rounds_twice)
    found = with_low_rank(values.view("u2"), dtype_from_name(name), (0, 0), added)
    sums = values.astype(np.float32) + (a.astype(values.dtype).astype(np.float32) if rounds_twice else a)
    assert found.tobytes() == sums.astype(values.dtype).tobytes()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("total", "factors", "wanted"),
    [
        pytest.param(1.0, (2**12 + 1, 2**24 - 2**12 + 1), 1 + 2.0**-23, id="a little more than halfway"),
        pytest.param(1 + 2.0**-23, (2**18 - 1, 2**18 + 1), 1 + 2.0**-23, id="a little less than halfway"),
        pytest.param(1.0, (1, 2**36), 1.0, id="halfway"),
    ],
)
def test_a_sum_that_float64_rounds_to_halfway_is_rounded_once(
    total: float, factors: tuple[int, int], wanted: float, sign: int
) -> None:
    """The product is 2**-24, half of float32's last bit beside 1, and perhaps 2**-60 more or less."""
    b = np.array([[1, factors[0] * 2.0**-30]], np.float32)
    a = np.array([[sign * total], [sign * factors[1] * 2.0**-30]], np.float32)
    values = np.zeros((1, 1), np.float32)
    found = with_low_rank(values.view("u4"), dtype_from_name("Float32"), (0, 0), LowRank(b, a, 1.0, False))
    assert found.view(np.float32).tolist() == [[sign * wanted]]
