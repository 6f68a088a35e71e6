"""Reads the single numbers and texts in a checkpoint file, such as `append_info`'s."""

import math
from itertools import islice

import numpy as np

from reshard.core.changes.info_texts import InfoValue
from reshard.core.files.model import FileIndex, TensorEntry
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.casting import NUMPY_TYPES

MAX_SCALARS = 64
"""Limit for files that consist of scalars; the rest is left out."""


def read_scalars(file: SourceFile, index: FileIndex) -> dict[str, InfoValue]:
    """Read a file's texts and 0-d tensors by name, in the file's order; at most `MAX_SCALARS`.

    Raises:
        CheckpointError: the file is truncated.
        StorageError: the file cannot be read.
    """
    found = {entry.name: entry for entry in islice(filter(_is_scalar, index.entries.values()), MAX_SCALARS)}
    numbers = [entry for entry in found.values() if entry.text is None]
    contents = file.read_many([(entry.extents[0].offset, entry.extents[0].length) for entry in numbers])
    values = {
        entry.name: np.frombuffer(content, NUMPY_TYPES[entry.dtype.name]).item()
        for entry, content in zip(numbers, contents, strict=True)
    }
    return {name: values[name] if entry.text is None else entry.text for name, entry in found.items()}


def json_value(value: InfoValue) -> InfoValue:
    """Return a value as JSON can represent it: numbers that are not finite become text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _is_scalar(entry: TensorEntry) -> bool:
    is_number = entry.shape == () and entry.dtype.name in NUMPY_TYPES and len(entry.extents) == 1
    return is_number or entry.text is not None
