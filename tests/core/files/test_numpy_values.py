from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.numpy_values import INT4, array_of, bytes_of, dtype_of, numpy_dtype
from reshard.core.tensor.dtypes import MAP_TENSOR, dtype_from_name

NAMES = [
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    *("Float16", "Float32", "Float64", "Bool", "BFloat16", "Int4"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_has_its_numpy_dtype(name: str) -> None:
    dtype = dtype_from_name(name)
    array = np.zeros(3, numpy_dtype(dtype))
    assert array.itemsize == dtype.itemsize
    assert dtype_of(array) is dtype
    assert dtype_of(array[1:].copy()) is dtype


def test_what_no_file_holds() -> None:
    with pytest.raises(CheckpointError, match="a MapTensor is not an array"):
        numpy_dtype(MAP_TENSOR)
    for array in (np.zeros(1, complex), np.array(["a"]), np.array([None]), np.zeros(1, ml_dtypes.float8_e4m3fn)):
        with pytest.raises(TypeError, match="no checkpoint file holds elements of numpy's dtype"):
            dtype_of(array)


def test_what_arrays_are_made_of() -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert array_of(floats) is floats
    assert array_of(np.float64(0.5)).shape == ()
    for thing in (
        SimpleNamespace(asnumpy=lambda: floats),
        SimpleNamespace(numpy=lambda: floats),
        SimpleNamespace(asnumpy=lambda: floats, numpy=lambda: None),
    ):
        assert array_of(thing) is floats
    with pytest.raises(TypeError, match="<class 'list'> is neither an array nor"):
        array_of([1, 2])


def test_arrays_are_laid_out_as_files_hold_them() -> None:
    big = np.arange(6, dtype=">i4").reshape(2, 3).T
    array = array_of(big)
    assert array.dtype == np.dtype("<i4")
    assert bytes(bytes_of(array)) == np.ascontiguousarray(big).astype("<i4").tobytes()
    assert array_of(np.zeros(4, INT4)[::2]).dtype.metadata == INT4.metadata


def test_packed_integers_of_a_tensor_stay_what_they_are() -> None:
    """MindSpore's arrays of them are plain int8: only the Tensor's dtype says it."""
    tensor = SimpleNamespace(dtype="Int4", asnumpy=lambda: np.array([17, 35], np.int8))
    array = array_of(tensor)
    assert dtype_of(array).name == "Int4"
    assert array.tolist() == [17, 35]
    assert dtype_of(array_of(SimpleNamespace(dtype="Int8", asnumpy=tensor.asnumpy))).name == "Int8"
