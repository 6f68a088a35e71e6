"""The numpy dtypes of arrays that hold tensors' elements."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reshard.core.tensor.dtypes import DType

NUMPY_TYPES: Mapping[str, np.dtype[Any]] = {
    "Int8": np.dtype("<i1"),
    "UInt8": np.dtype("<u1"),
    "Int16": np.dtype("<i2"),
    "UInt16": np.dtype("<u2"),
    "Int32": np.dtype("<i4"),
    "UInt32": np.dtype("<u4"),
    "Int64": np.dtype("<i8"),
    "UInt64": np.dtype("<u8"),
    "Float16": np.dtype("<f2"),
    "Float32": np.dtype("<f4"),
    "Float64": np.dtype("<f8"),
    "Bool": np.dtype("?"),
    "BFloat16": np.dtype(ml_dtypes.bfloat16),
}
"""By the names of dtypes; numpy has none for packed 4-bit integers, texts and map tensors."""
_FLOATS = ("Float16", "BFloat16", "Float32", "Float64")


def is_float(dtype: DType) -> bool:
    """Whether it is a floating-point type."""
    return dtype.name in _FLOATS


def typed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Unsigned integers of the bits of elements as these elements, without a copy; opaque ones stay bytes."""
    return values.view(NUMPY_TYPES.get(dtype.name, values.dtype))


def cast_bits(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Bits of values of one floating-point type as bits of another, rounded to the nearest."""
    with np.errstate(all="ignore"):
        cast: np.ndarray = typed(values, source).astype(NUMPY_TYPES[target.name])
    return cast.view(f"<u{target.itemsize}")
