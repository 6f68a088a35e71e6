"""Element types: their names, their sizes, and their spelling in each file format.

Most contents are only moved, so a dtype is a name and an item size. `.ckpt` spellings are MindSpore's
`tensor_type` strings; `.safetensors` has none for packed 4-bit integers (MindSpore stores their bytes as I8 and says
`"{name}": "Int4"` in the metadata) nor for text and map tensors.
"""

from functools import cache

from reshard.core.errors import CheckpointError
from reshard.core.runtime.records import Record


class DType(Record):
    """An element type.

    Attributes:
        name: spelling in `.ckpt` files and records.
        itemsize: bytes of an element; 0 for a foreign type of fractional or unknown size.
        safetensors_tag: spelling in `.safetensors` files; None if they cannot hold it as a tensor.
        is_foreign: MindSpore's files cannot hold it: its parameters can only be left out, or, if it is a float of 8
            bits, carried as they are into files for other frameworks.
    """

    name: str
    itemsize: int
    safetensors_tag: str | None
    is_foreign: bool = False

    @property
    def is_float(self) -> bool:
        """True for floating-point types, which can be cast."""
        return self.name in ("Float16", "BFloat16", "Float32", "Float64")

    @property
    def is_float8(self) -> bool:
        """True for floats of 8 bits, whose bytes are moved but never computed with."""
        return self.name in FLOAT8_NAMES

    def __str__(self) -> str:
        return self.name


FLOAT8_NAMES = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
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
_FOREIGN_BITS = {
    **dict.fromkeys(FLOAT8_NAMES, 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
    "C64": 64,
}
"""`.safetensors` tag of other frameworks' types -> bits of an element; files may have further tags."""
_LONGEST_NAME = 100
_BY_NAME = {dtype.name: dtype for dtype in (*_TENSOR_DTYPES, INT4, TEXT, MAP_TENSOR)}
ADDED_TO = ("Float16", "BFloat16", "Float32", "Float64")
"""Names of the element types to whose values numbers can be added."""
SCALED = _BY_NAME["BFloat16"]
"""The type of values that were multiplied with their blocks' factors."""
BLOCK_SCALED_NAME = "F8_E4M3"
"""Name of the foreign type whose values can be multiplied so."""
_BY_SAFETENSORS_TAG = {dtype.safetensors_tag: dtype for dtype in _TENSOR_DTYPES if dtype.safetensors_tag}


_TORCH_NAMES = {
    **{dtype.name.lower(): dtype.safetensors_tag for dtype in _TENSOR_DTYPES},
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
    "complex128": "C128",
}
"""torch's name -> `.safetensors` tag, or what would be one."""
TORCH_DTYPES = tuple(_TORCH_NAMES)
_TORCH_BYTES = {"C128": 16, "C64": 8}


def dtype_from_torch(name: str) -> DType:
    """Return the dtype, perhaps foreign, of torch's name without `torch.`, one of `TORCH_DTYPES`.

    Raises:
        CheckpointError: the name is not in the table.
    """
    tag = _TORCH_NAMES.get(name)
    if tag is None:
        raise CheckpointError(f"unknown dtype torch.{name}")
    return _BY_SAFETENSORS_TAG.get(tag) or foreign_dtype(tag, 1, _TORCH_BYTES.get(tag, 1))


def torch_name(dtype: DType) -> str | None:
    """Return torch's name of a dtype, without `torch.`; None for one that torch lacks, or that cannot be written."""
    if dtype.is_float8:
        return next(name for name, tag in _TORCH_NAMES.items() if tag == dtype.name)
    return dtype.name.lower() if dtype in _TENSOR_DTYPES else None


def dtype_from_name(name: str) -> DType:
    """Return the dtype of a `.ckpt` `tensor_type` (also the name used in records).

    Raises:
        CheckpointError: the name is not in the table.
    """
    dtype = _BY_NAME.get(name)
    if dtype is None:
        raise CheckpointError(f"unknown dtype {name!r} (known: {', '.join(_BY_NAME)})")
    return dtype


def dtype_from_ckpt(name: str, elements: int = 0, size_bytes: int = 0) -> DType:
    """Return the dtype, perhaps foreign, of a `.ckpt` `tensor_type`, or of a name in records, whatever the format.

    Raises:
        CheckpointError: the name is malformed, or `elements` cannot take `size_bytes`.
    """
    return _BY_NAME.get(name) or foreign_dtype(name, elements, size_bytes)


def dtype_from_safetensors(tag: str, elements: int, size_bytes: int) -> DType:
    """Return the dtype, perhaps foreign, of a `.safetensors` tag of which `elements` take `size_bytes`.

    Raises:
        CheckpointError: the tag is malformed, or the elements cannot have this size.
    """
    # a tag spelled like a `.ckpt` name is quoted: it need not mean the same type
    return _BY_SAFETENSORS_TAG.get(tag) or foreign_dtype(repr(tag) if tag in _BY_NAME else tag, elements, size_bytes)


def foreign_dtype(name: str, elements: int, size_bytes: int) -> DType:
    """Return a dtype outside the table; its element size follows from `elements` and `size_bytes` in a file.

    Raises:
        CheckpointError: the name is malformed, or the elements cannot have this size.
    """
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise CheckpointError(f"{name[:_LONGEST_NAME]!r} cannot be the name of a dtype: damaged")
    bits = _FOREIGN_BITS.get(name)
    # an unknown type may have any width of at least one bit
    fits = (
        elements <= 8 * size_bytes and bool(elements) == bool(size_bytes)
        if bits is None
        else (bits * elements == 8 * size_bytes)
    )
    if not fits:
        raise CheckpointError(f"{size_bytes} bytes cannot be {elements} elements of the dtype {name}: damaged")
    if bits is not None:
        return _foreign(name, 0 if bits % 8 else bits // 8)
    return _foreign(name, 0 if not elements or size_bytes % elements else size_bytes // elements)


@cache
def _foreign(name: str, itemsize: int) -> DType:
    # cached, since dtypes are compared by identity
    return DType(name, itemsize, name if name in _FOREIGN_BITS and itemsize else None, is_foreign=True)
