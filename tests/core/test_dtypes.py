"""The table of element types, against numpy and the safetensors library."""

import numpy as np
import pytest
from safetensors.numpy import save

from core.dtypes import INT4, MAP_TENSOR, TEXT, dtype_from_name, dtype_from_record, dtype_from_safetensors
from core.errors import CheckpointError

NUMPY = {
    "Int8": np.int8,
    "UInt8": np.uint8,
    "Int16": np.int16,
    "UInt16": np.uint16,
    "Int32": np.int32,
    "UInt32": np.uint32,
    "Int64": np.int64,
    "UInt64": np.uint64,
    "Float16": np.float16,
    "Float32": np.float32,
    "Float64": np.float64,
    "Bool": np.bool_,
}


@pytest.mark.parametrize(("name", "kind"), NUMPY.items())
def test_sizes_and_tags(name: str, kind: type[np.generic]) -> None:
    dtype = dtype_from_name(name)
    assert (dtype.name, str(dtype)) == (name, name)
    assert dtype.itemsize == np.dtype(kind).itemsize
    header = save({"x": np.zeros(1, kind)})
    assert f'"dtype":"{dtype.safetensors_tag}"'.encode() in header
    assert dtype_from_safetensors(dtype.safetensors_tag or "") is dtype


def test_bfloat16() -> None:
    dtype = dtype_from_name("BFloat16")
    assert (dtype.itemsize, dtype.safetensors_tag) == (2, "BF16")
    assert dtype_from_safetensors("BF16") is dtype


def test_what_safetensors_stores_as_something_else_or_not_at_all() -> None:
    assert dtype_from_name("Int4") is INT4
    assert dtype_from_safetensors("I8") is not INT4
    assert dtype_from_name("str") is TEXT
    assert dtype_from_name("MapTensor") is MAP_TENSOR
    assert TEXT.safetensors_tag is MAP_TENSOR.safetensors_tag is None


@pytest.mark.parametrize("name", ["", "float32", "F32", "Complex64", "Float8E4M3FN", "F8_E4M3"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"unknown dtype '{name}' \(known: Int8, .*BFloat16, Int4, str"):
        dtype_from_name(name)


@pytest.mark.parametrize("tag", ["", "f32", "Float32", "F4", "None"])
def test_unknown_tags(tag: str) -> None:
    with pytest.raises(CheckpointError, match=rf"unknown dtype '{tag}' \(known: I8, .*BF16\)"):
        dtype_from_safetensors(tag)


def test_dtypes_of_others_are_known_by_their_tags_only() -> None:
    for tag, itemsize in (("F8_E4M3", 1), ("C64", 8)):
        dtype = dtype_from_safetensors(tag)
        assert (dtype.name, dtype.itemsize, dtype.is_foreign, dtype.is_float) == (tag, itemsize, True, False)
        assert dtype_from_record(tag) is dtype
    assert dtype_from_record("Int4") is INT4
    assert not INT4.is_foreign
