"""The table of element types, against numpy and the safetensors library."""

import numpy as np
import pytest
from safetensors.numpy import save

from reshard.core.errors import CheckpointError
from reshard.core.tensor.dtypes import (
    INT4,
    MAP_TENSOR,
    TEXT,
    dtype_from_ckpt,
    dtype_from_name,
    dtype_from_safetensors,
)

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
    assert dtype_from_safetensors(dtype.safetensors_tag or "", 0, 0) is dtype


def test_bfloat16() -> None:
    dtype = dtype_from_name("BFloat16")
    assert (dtype.itemsize, dtype.safetensors_tag) == (2, "BF16")
    assert dtype_from_safetensors("BF16", 0, 0) is dtype


def test_what_safetensors_stores_as_something_else_or_not_at_all() -> None:
    assert dtype_from_name("Int4") is INT4
    assert dtype_from_safetensors("I8", 0, 0) is not INT4
    assert dtype_from_name("str") is TEXT
    assert dtype_from_name("MapTensor") is MAP_TENSOR
    assert TEXT.safetensors_tag is MAP_TENSOR.safetensors_tag is None


@pytest.mark.parametrize("name", ["", "float32", "F32", "Complex64", "Float8E4M3FN", "F8_E4M3"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"unknown dtype '{name}' \(known: Int8, .*BFloat16, Int4, str"):
        dtype_from_name(name)


@pytest.mark.parametrize("tag", ["", "F3\n2", "F" * 101])
def test_what_cannot_be_a_dtype(tag: str) -> None:
    for read in (dtype_from_safetensors, dtype_from_ckpt):
        with pytest.raises(CheckpointError, match="cannot be the name of a dtype: damaged"):
            read(tag, 1, 4)


@pytest.mark.parametrize(
    ("name", "elements", "size_bytes", "itemsize"),
    [
        ("F8_E4M3", 6, 6, 1),
        ("C64", 6, 48, 8),
        ("F4", 6, 3, 0),
        ("F6_E2M3", 8, 6, 0),
        ("f32", 6, 24, 4),
        ("Complex128", 6, 96, 16),
        ("Uint1", 16, 2, 0),
        ("Odd", 2, 3, 0),
        ("Odd", 0, 0, 0),
    ],
)
def test_a_foreign_dtype_is_as_wide_as_its_elements(name: str, elements: int, size_bytes: int, itemsize: int) -> None:
    dtype = dtype_from_safetensors(name, elements, size_bytes)
    assert (dtype.name, dtype.itemsize, dtype.is_foreign, dtype.is_float) == (name, itemsize, True, False)
    assert dtype_from_ckpt(name, elements, size_bytes) is dtype


@pytest.mark.parametrize(
    ("name", "elements", "size_bytes"), [("F4", 3, 2), ("F8_E4M3", 4, 8), ("Odd", 17, 2), ("Odd", 0, 1), ("Odd", 1, 0)]
)
def test_so_many_elements_cannot_take_so_many_bytes(name: str, elements: int, size_bytes: int) -> None:
    with pytest.raises(CheckpointError) as caught:
        dtype_from_safetensors(name, elements, size_bytes)
    assert str(caught.value) == (f"{size_bytes} bytes cannot be {elements} elements of the dtype {name}: damaged")


def test_a_tag_that_is_spelled_as_in_the_other_format_is_another_dtype() -> None:
    dtype = dtype_from_safetensors("Float32", 2, 8)
    assert (dtype.name, dtype.is_foreign) == ("'Float32'", True)
    assert dtype_from_ckpt("'Float32'", 2, 8) is dtype
    assert dtype_from_ckpt("Int4") is INT4
    assert not INT4.is_foreign
