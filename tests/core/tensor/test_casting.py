import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.tensor.casting import cast_into, find_overflow
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.overflow import Overflow

NUMPY = {"Float16": np.float16, "BFloat16": ml_dtypes.bfloat16, "Float32": np.float32, "Float64": np.float64}
PAIRS = list(itertools.product(NUMPY, NUMPY))
INFINITE = {"Float16": 0x7C00, "BFloat16": 0x7F80, "Float32": 0x7F800000, "Float64": 0x7FF0000000000000}


def cast(bits: np.ndarray, source: str, target: str) -> tuple[np.ndarray, int]:
    out = np.empty(bits.shape, f"u{np.dtype(NUMPY[target]).itemsize}")
    return out, cast_into(bits, dtype_from_name(source), dtype_from_name(target), out)


def expected(bits: np.ndarray, source: str, target: str) -> tuple[np.ndarray, int]:
    values = bits.view(NUMPY[source])
    with np.errstate(all="ignore"):
        wanted = values.astype(NUMPY[target])
        overflowed = int(np.count_nonzero(np.isinf(wanted) & np.isfinite(values)))
    return wanted.view(f"u{wanted.itemsize}"), overflowed


def all_bits(name: str, count: int = 60_000) -> np.ndarray:
    """Every value of a 16-bit dtype; of others random bits, most of them near what other dtypes can hold."""
    size = np.dtype(NUMPY[name]).itemsize
    if size == 2:
        return np.arange(2**16, dtype=np.uint16)
    generator = np.random.default_rng(7)
    bits = generator.integers(0, 2 ** (8 * size), count, dtype=f"u{size}")
    magnitudes = np.float64(2.0) ** generator.integers(-30, 20, count) * generator.uniform(-2, 2, count)
    near = magnitudes.astype(NUMPY[name]).view(bits.dtype)
    dropped = {4: (13, 16), 8: (29, 42, 45)}[size]
    ties = [near >> bits.dtype.type(n) << bits.dtype.type(n) | bits.dtype.type(1 << (n - 1)) for n in dropped]
    just_beside = [tie + bits.dtype.type(step) for tie in ties for step in (1, -1 % 2 ** (8 * size))]
    special = [0, 1, INFINITE[name] - 1, INFINITE[name], INFINITE[name] + 1, 2 * INFINITE[name] - 1]
    signed = [value | sign << (8 * size - 1) for value in special for sign in (0, 1) if value < 2 ** (8 * size - 1)]
    return np.concatenate([bits, near, *ties, *just_beside, np.array(signed, bits.dtype)])


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_bits_and_overflows_are_those_of_numpy_and_ml_dtypes(source: str, target: str) -> None:
    bits = all_bits(source)
    found, overflowed = cast(bits, source, target)
    wanted, wanted_overflowed = expected(bits, source, target)
    np.testing.assert_array_equal(found, wanted)
    assert overflowed == wanted_overflowed


def test_halfway_values_go_to_the_even_neighbor_and_above_the_largest_to_infinity() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7F7FFF, 0x7F7F8000, 0xFF7F8000, 0x7F800000], np.uint32)
    found, overflowed = cast(bits, "Float32", "BFloat16")
    assert found.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F7F, 0x7F80, 0xFF80, 0x7F80]
    assert overflowed == 2  # the last one was infinite already


def test_nans_stay_nans_and_keep_their_sign() -> None:
    bits = np.array([0x7F800001, 0xFFFFFFFF], np.uint32)
    found, overflowed = cast(bits, "Float32", "BFloat16")
    assert found.tolist() == [0x7FC0, 0xFFC0]
    assert overflowed == 0


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 40), min_size=0, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(PAIRS),
)
def test_any_strides(shape: list[int], random: object, pair: tuple[str, str]) -> None:
    source, target = pair
    axes = list(range(len(shape)))
    random.shuffle(axes)  # type: ignore[attr-defined]
    size = np.dtype(NUMPY[source]).itemsize
    generator = np.random.default_rng(3)
    bits = generator.integers(0, 2 ** (8 * size), [2 * length for length in shape], dtype=f"u{size}")
    values = bits[(slice(None, None, 2),) * len(shape)].transpose(axes)
    out = np.zeros([length + 1 for length in values.shape], f"u{np.dtype(NUMPY[target]).itemsize}")
    place = out[(slice(0, -1),) * values.ndim] if values.ndim else out
    overflowed = cast_into(values, dtype_from_name(source), dtype_from_name(target), place)
    wanted, wanted_overflowed = expected(np.array(values, order="C"), source, target)
    np.testing.assert_array_equal(place, wanted)
    assert overflowed == wanted_overflowed


def test_an_overflow_is_described() -> None:
    values = np.array([[1, 65519, np.inf], [np.nan, 65520, -70000]], np.float32)
    found = find_overflow(values.view(np.uint32), dtype_from_name("Float32"), dtype_from_name("Float16"))
    assert found == Overflow(2, -70000.0, (1, 1))
    assert find_overflow(values[:1].view(np.uint32), dtype_from_name("Float32"), dtype_from_name("Float16")) is None
    other = Overflow(3, 1e9, (0, 7))
    assert found.joined(other) == Overflow(5, 1e9, (0, 7))
