"""Where two tensors differ, and how much."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from reshard.core.tensor.dtypes import DType, dtype_from_name
from reshard.core.tensor.slices import TensorSlice
from reshard.core.verification import differences
from reshard.core.verification.differences import Located, common_float, locate

FLOAT32, BFLOAT16, INT32 = (dtype_from_name(name) for name in ("Float32", "BFloat16", "Int32"))


def reading(array: np.ndarray) -> Callable[[TensorSlice], np.ndarray]:
    return lambda box: array.view(f"<u{array.itemsize}")[box.as_index()]


def located(a: np.ndarray, b: np.ndarray, dtype_a: DType, dtype_b: DType) -> Located | None:
    return locate(a.shape, reading(a), dtype_a, reading(b), dtype_b)


def test_equal_tensors_have_no_difference() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert located(a, a.copy(), FLOAT32, FLOAT32) is None


@pytest.mark.parametrize("block_bytes", [4, 16, 2**20])
def test_the_largest_difference_is_found_in_any_block(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "_BLOCK_BYTES", block_bytes)
    a = np.zeros((3, 4), np.float32)
    b = a.copy()
    b[0, 1], b[1, 2], b[2, 3] = 1, -5, np.nan
    assert located(a, b, FLOAT32, FLOAT32) == Located(3, (0, 1), 5.0, (1, 2), ("0.0", "-5.0"), 1)


def test_integers_have_a_first_difference_only() -> None:
    a = np.arange(6, dtype=np.int32)
    b = a.copy()
    b[4:] = 9
    assert located(a, b, INT32, INT32) == Located(2, (4,), None, (4,), ("4", "9"), 0)


def test_floats_of_two_dtypes_are_compared_in_the_narrower_one() -> None:
    wide = np.array([1.0, 1.0001, 3.0], np.float32)
    narrow = wide.astype(ml_dtypes.bfloat16)
    assert common_float(FLOAT32, BFLOAT16) is common_float(BFLOAT16, FLOAT32) is BFLOAT16
    assert located(wide, narrow, FLOAT32, BFLOAT16) is None
    narrow[2] = 4
    found = located(wide, narrow, FLOAT32, BFLOAT16)
    assert found is not None
    assert (found.count, found.largest, found.index) == (1, 1.0, (2,))


def test_a_scalar_has_no_index() -> None:
    found = located(np.array(1, np.int32), np.array(2, np.int32), INT32, INT32)
    assert found is not None
    assert found.index == ()
