"""The format: a `.npy` file is a head, which has the dtype and the shape of an array, and the array's bytes."""

import io
import math
from typing import Any

import numpy as np

from reshard.core.errors import CheckpointError
from reshard.core.files.model import CheckpointFormat, Content, FileIndex, FilePlan, OutputEntry, TensorEntry
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.dtypes import dtype_from_torch, torch_name
from reshard.core.tensor.slices import Extent

_MAX_HEAD_BYTES = 256


def plan_array(entry: OutputEntry, version: int) -> FilePlan:
    """Lay out the file of one array."""
    write: Any = {1: np.lib.format.write_array_header_1_0, 2: np.lib.format.write_array_header_2_0}[version]
    descr = np.lib.format.dtype_to_descr(np.dtype(torch_name(entry.dtype)))
    head = io.BytesIO()
    write(head, {"descr": descr, "fortran_order": False, "shape": entry.shape})
    return FilePlan(
        (head.getvalue(), Content(entry.name, 0, entry.size_bytes)), len(head.getvalue()) + entry.size_bytes
    )


def read_array(file: SourceFile) -> FileIndex:
    """Index a file; raises a CheckpointError if it is damaged."""
    head = io.BytesIO(read_bytes(file, 0, min(file.size_bytes, _MAX_HEAD_BYTES)))
    try:
        read: Any = np.lib.format.read_array_header_1_0
        if np.lib.format.read_magic(head) == (2, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(head)
    except ValueError as error:
        raise CheckpointError(f"{file.location}: not an array: {error}") from error
    extent = Extent(head.tell(), math.prod(shape) * dtype.itemsize)
    if extent.offset + extent.length != file.size_bytes:
        raise CheckpointError(f"{file.location}: has {file.size_bytes} bytes, its head says otherwise")
    name = file.location.name.removesuffix(".npy")
    entry = TensorEntry(name, dtype_from_torch(dtype.name), shape, (extent,))
    return FileIndex(CheckpointFormat.SAFETENSORS, file.size_bytes, {name: entry})
