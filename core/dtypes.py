"""The one table of element types: their names, sizes, and how each file format spells them.

Contents are never converted here, only moved, so a dtype is a name and an item size. `.ckpt` spellings are MindSpore's
`tensor_type` strings; `.safetensors` has none for packed 4-bit integers (MindSpore stores their bytes as I8 and says
`"{name}": "Int4"` in the metadata) nor for text and map tensors.
"""

from dataclasses import dataclass

from core.errors import CheckpointError


@dataclass(frozen=True)
class DType:
    """An element type. `safetensors_tag` is None where that format cannot hold it as a tensor."""

    name: str
    itemsize: int
    safetensors_tag: str | None

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type, which can be cast to another."""
        return self.name in ("Float16", "BFloat16", "Float32", "Float64")

    def __str__(self) -> str:
        return self.name


INT4 = DType("Int4", 1, "I8")  # two values a byte; its dims count bytes
TEXT = DType("str", 1, None)  # a text entry: opaque bytes, shape is its length
MAP_TENSOR = DType("MapTensor", 1, None)  # a hash table's serialized messages: opaque bytes, shape is their length

_TENSOR_DTYPES = (
    DType("Int8", 1, "I8"),
    DType("UInt8", 1, "U8"),
    DType("Int16", 2, "I16"),
    DType("UInt16", 2, "U16"),
    DType("Int32", 4, "I32"),
    DType("UInt32", 4, "U32"),
    DType("Int64", 8, "I64"),
    DType("UInt64", 8, "U64"),
    DType("Float16", 2, "F16"),
    DType("Float32", 4, "F32"),
    DType("Float64", 8, "F64"),
    DType("Bool", 1, "BOOL"),
    DType("BFloat16", 2, "BF16"),
)
_BY_NAME = {dtype.name: dtype for dtype in (*_TENSOR_DTYPES, INT4, TEXT, MAP_TENSOR)}
_BY_SAFETENSORS_TAG = {dtype.safetensors_tag: dtype for dtype in _TENSOR_DTYPES if dtype.safetensors_tag}


def dtype_from_name(name: str) -> DType:
    """The dtype of a `.ckpt` `tensor_type` (also the name used in records).

    Raises:
        CheckpointError: the name is not in the table.
    """
    return _lookup(_BY_NAME, name)


def dtype_from_safetensors(tag: str) -> DType:
    """The dtype of a `.safetensors` tag.

    Raises:
        CheckpointError: the tag is not in the table.
    """
    return _lookup(_BY_SAFETENSORS_TAG, tag)


def _lookup(table: dict[str, DType], key: str) -> DType:
    dtype = table.get(key)
    if dtype is None:
        raise CheckpointError(f"unknown dtype {key!r} (known: {', '.join(table)})")
    return dtype
