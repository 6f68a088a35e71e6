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

    @property
    def is_foreign(self) -> bool:
        """Whether MindSpore has no such type in its files: a parameter of it can only be left out."""
        return self.name in _FOREIGN

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
_FOREIGN = {
    tag: DType(tag, itemsize, tag)
    for tag, itemsize in (
        *(("F8_E4M3", 1), ("F8_E5M2", 1), ("F8_E8M0", 1), ("F8_E4M3FNUZ", 1), ("F8_E5M2FNUZ", 1)),
        ("C64", 8),
    )
}
"""What other frameworks write besides into `.safetensors` files, under its tags; but for types of less than a byte."""
_BY_NAME = {dtype.name: dtype for dtype in (*_TENSOR_DTYPES, INT4, TEXT, MAP_TENSOR)}
_BY_SAFETENSORS_TAG = {dtype.safetensors_tag: dtype for dtype in _TENSOR_DTYPES if dtype.safetensors_tag}


def dtype_from_name(name: str) -> DType:
    """The dtype of a `.ckpt` `tensor_type` (also the name used in records).

    Raises:
        CheckpointError: the name is not in the table.
    """
    return _lookup(_BY_NAME, name)


def dtype_from_safetensors(tag: str) -> DType:
    """The dtype of a `.safetensors` tag; it may be a foreign one.

    Raises:
        CheckpointError: the tag is not in the table.
    """
    return _FOREIGN.get(tag) or _lookup(_BY_SAFETENSORS_TAG, tag)


def dtype_from_record(name: str) -> DType:
    """The dtype of this name in what is recorded of a checkpoint of either format; it may be a foreign one.

    Raises:
        CheckpointError: the name is not in the table.
    """
    return _FOREIGN.get(name) or _lookup(_BY_NAME, name)


def _lookup(table: dict[str, DType], key: str) -> DType:
    dtype = table.get(key)
    if dtype is None:
        raise CheckpointError(f"unknown dtype {key!r} (known: {', '.join(table)})")
    return dtype
