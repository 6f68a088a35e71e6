"""Reads the single numbers and texts in a checkpoint file, such as `append_info`'s."""

import math
import struct
from itertools import islice

from reshard.core.checkpoint.model import FileIndex, TensorEntry
from reshard.core.request.info_texts import InfoValue
from reshard.core.storage.reading import SourceFile

MAX_SCALARS = 64
"""Limit for files that consist of scalars; the rest is left out."""

_CODES = {
    "Int8": "b",
    "UInt8": "B",
    "Int16": "h",
    "UInt16": "H",
    "Int32": "i",
    "UInt32": "I",
    "Int64": "q",
    "UInt64": "Q",
    "Float16": "e",
    "Float32": "f",
    "Float64": "d",
    "Bool": "?",
}
_BFLOAT16 = "BFloat16"


def read_scalars(file: SourceFile, index: FileIndex) -> dict[str, InfoValue]:
    """Read a file's texts and 0-d tensors by name, in the file's order; at most `MAX_SCALARS`.

    Raises:
        CheckpointError: the file is truncated.
        StorageError: the file cannot be read.
    """
    found = {entry.name: entry for entry in islice(filter(_is_scalar, index.entries.values()), MAX_SCALARS)}
    numbers = [entry for entry in found.values() if entry.text is None]
    contents = file.read_many([(entry.extents[0].offset, entry.extents[0].length) for entry in numbers])
    values = {entry.name: _number(entry, content) for entry, content in zip(numbers, contents, strict=True)}
    return {name: values[name] if entry.text is None else entry.text for name, entry in found.items()}


def json_value(value: InfoValue) -> InfoValue:
    """Return a value as JSON can represent it: numbers that are not finite become text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _is_scalar(entry: TensorEntry) -> bool:
    known = entry.dtype.name in _CODES or entry.dtype.name == _BFLOAT16
    return entry.text is not None or (entry.shape == () and known and len(entry.extents) == 1)


def _number(entry: TensorEntry, content: bytes) -> bool | int | float:
    value: bool | int | float
    if entry.dtype.name == _BFLOAT16:  # the upper half of a Float32
        (value,) = struct.unpack("<f", b"\0\0" + content)
    else:
        (value,) = struct.unpack("<" + _CODES[entry.dtype.name], content)
    return value
