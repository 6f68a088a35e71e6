"""Parameters as numpy arrays, where MindSpore has Parameters; and how values given by users are saved.

A scalar is a 0-d array, a bfloat16 tensor an array of `ml_dtypes.bfloat16`, a text a `str`. Packed 4-bit integers, two
a byte, are the array of their bytes with dtype `INT4`: int8 to numpy, which keeps the mark through slices and copies,
so that a loaded array is saved as what it was. A map parameter (a hash table) is a list of its keys, values and status,
as MindSpore loads it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reshard.core.errors import CheckpointError
from reshard.core.tensor import dtypes
from reshard.core.tensor.casting import NUMPY_TYPES
from reshard.core.tensor.dtypes import DType, dtype_from_name

Value = np.ndarray | str | list[np.ndarray]
"""An array, a text, or a map parameter's keys, values and status."""

_MARK = "mindspore"
INT4 = np.dtype(np.int8, metadata={_MARK: dtypes.INT4.name})
"""Dtype of an array of packed 4-bit integers, two a byte."""

_NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {**NUMPY_TYPES, dtypes.INT4.name: INT4}
_FOREIGN_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "C64": np.dtype("<c8"),
}
_NAMES = {dtype: name for name, dtype in _NUMPY_DTYPES.items() if dtype is not INT4}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the numpy dtype for a tensor's elements.

    Raises:
        CheckpointError: the dtype is not a tensor's.
    """
    if dtype.name not in _NUMPY_DTYPES:
        raise CheckpointError(f"a {dtype} is not an array")
    return _NUMPY_DTYPES[dtype.name]


def readable_dtype(dtype: DType) -> np.dtype[Any] | None:
    """Return the numpy dtype for elements that are only read, also of other frameworks' types; None if it has none."""
    name = dtype.name
    if name in _NUMPY_DTYPES:
        return _NUMPY_DTYPES[name]
    foreign = _FOREIGN_DTYPES.get(name)
    return foreign if foreign is not None and foreign.itemsize == dtype.itemsize else None


def dtype_of(array: np.ndarray) -> DType:
    """Return the dtype that an array's elements are saved as.

    Raises:
        TypeError: no checkpoint file can hold it.
    """
    metadata: Mapping[str, object] = array.dtype.metadata or {}
    if metadata.get(_MARK) == dtypes.INT4.name:
        return dtypes.INT4
    name = _NAMES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise TypeError(f"no checkpoint file holds elements of numpy's dtype {array.dtype}")
    return dtype_from_name(name)


def is_array_like(value: object) -> bool:
    """True if `array_of` accepts the value: numpy's own, or one that converts itself (several frameworks' Tensors)."""
    return isinstance(value, np.ndarray | np.generic) or _conversion(value) is not None


def array_of(value: Any) -> np.ndarray:
    """Convert a value to an array, little-endian and in C order; numpy's own are copied only if needed.

    Raises:
        TypeError: the value cannot be converted.
    """
    if not isinstance(value, np.ndarray | np.generic):
        convert = _conversion(value)
        if convert is None:
            raise TypeError(f"{type(value)} is neither an array nor anything that can be made one")
        array = np.asarray(convert())
        if str(getattr(value, "dtype", "")) == dtypes.INT4.name:  # MindSpore's Tensor says it, its array does not
            array = array.view(INT4)
    else:
        array = np.asarray(value)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.name == "bfloat16":  # MindSpore registers a dtype of its own
        array = array.view(np.uint16).view(_NUMPY_DTYPES["BFloat16"])
    # ascontiguousarray would make a 0-d array 1-d
    return array if array.flags.c_contiguous else array.copy(order="C")


def _conversion(value: object) -> Callable[[], Any] | None:
    methods = (getattr(value, name, None) for name in ("asnumpy", "__array__", "numpy"))
    return next(filter(callable, methods), None)


def bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of an array in C order."""
    return array.reshape(-1).view(np.uint8).data


def is_same(one: Value, other: Value) -> bool:
    """True if two values are equal in every bit."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        # by bytes, so that equal NaNs are equal
        same_kind = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same_kind and np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, str) and one == other
