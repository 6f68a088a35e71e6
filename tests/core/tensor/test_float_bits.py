"""NaN and Inf by bits: numpy and ml_dtypes are the judges, for every pattern of the small types."""

import ml_dtypes
import numpy as np
import pytest

from reshard.core.tensor.dtypes import DType, dtype_from_name, dtype_from_safetensors
from reshard.core.tensor.float_bits import NonFinite, are_zero, find_non_finite, float_bits, is_unknown

TYPES = {
    "Float16": np.float16,
    "BFloat16": ml_dtypes.bfloat16,
    "Float32": np.float32,
    "Float64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}


def dtype_of(name: str) -> DType:
    return dtype_from_safetensors(name, 1, 1) if name.startswith("F8") else dtype_from_name(name)


def found_in(bits: np.ndarray, name: str) -> NonFinite | None:
    known = float_bits(dtype_of(name))
    assert known is not None
    return find_non_finite(bits, known)


def patterns(name: str) -> np.ndarray:
    """All patterns of a small type; of a large one those around every border, and random ones."""
    kind = np.dtype(f"<u{np.dtype(TYPES[name]).itemsize}")
    if kind.itemsize <= 2:
        return np.arange(2 ** (8 * kind.itemsize)).astype(kind)
    nan, infinity = (int(np.array(value, TYPES[name]).view(kind)) for value in (np.nan, np.inf))
    sign = 1 << (8 * kind.itemsize - 1)
    borders = [0, 1, infinity - 1, infinity, infinity + 1, nan, sign - 1]
    random = np.random.default_rng(0).integers(0, 2**32, 2000).astype(object) << (8 * kind.itemsize - 32)
    return np.array([*borders, *(each | sign for each in borders), *random], object).astype(kind)


def as_float64(bits: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # numpy warns of signaling NaN
        return bits.view(TYPES[name]).astype(np.float64)


@pytest.mark.parametrize("name", TYPES)
def test_each_pattern_is_what_numpy_says(name: str) -> None:
    every = patterns(name)
    values = as_float64(every, name)
    for bits, value in zip(every, values, strict=True):
        found = found_in(bits.reshape(1), name)
        expected = NonFinite(int(np.isnan(value)), int(np.isinf(value)), 0)
        assert found == (None if np.isfinite(value) else expected), (hex(bits), value)
    assert found_in(every, name) == NonFinite(
        int(np.isnan(values).sum()), int(np.isinf(values).sum()), int(np.argmin(np.isfinite(values)))
    )
    finite = every[np.isfinite(values)]
    assert found_in(finite, name) is None
    assert found_in(finite[:0], name) is None


@pytest.mark.parametrize("name", TYPES)
def test_zeros_are_of_either_sign(name: str) -> None:
    every = patterns(name)
    known = float_bits(dtype_of(name))
    assert known is not None
    zeros = every[as_float64(every, name) == 0]
    if not zeros.size:  # a type without zero
        assert not are_zero(np.zeros(3, every.dtype), known)
        return
    for other in {*every[::61].tolist(), *zeros.tolist()}:
        other = every.dtype.type(other)
        block = np.concatenate([zeros, other.reshape(1), zeros])
        assert are_zero(block, known) == (other in zeros), hex(other)
    assert not are_zero(zeros[:0], known)


def test_types_without_nan_and_types_that_are_not_known() -> None:
    for name in ("Int32", "Bool", "UInt8", "str", "Int4", "MapTensor"):
        assert float_bits(dtype_from_name(name)) is None
        assert not is_unknown(dtype_from_name(name))
    for tag, elements, size in (("F4", 2, 1), ("F6_E2M3", 4, 3)):
        assert float_bits(dtype_from_safetensors(tag, elements, size)) is None
        assert not is_unknown(dtype_from_safetensors(tag, elements, size))
    assert is_unknown(dtype_from_safetensors("C64", 1, 8))
    assert is_unknown(dtype_from_safetensors("F8_NEW", 1, 1))
