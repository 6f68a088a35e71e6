"""Tensors and formats as torch's archives name them: what is written to any of these.

A tensor is a call that makes a view of a storage, which is a record beside the pickle.
"""

import math

from reshard.core.errors import CheckpointError
from reshard.core.files.model import OutputEntry
from reshard.core.files.zip_layout import STORAGES
from reshard.core.files.zip_writing import ALIGNMENT, ArchiveLayout
from reshard.core.runtime.pickled import Global, PersistentId, PickledObject
from reshard.core.tensor.dtypes import DType, dtype_from_torch, torch_name
from reshard.core.tensor.slices import Shape, row_major_strides
from reshard.core.text.options import option

VERSION = b"3\n"
"""Content of the record `version`, which torch requires."""
_STORAGES = {dtype_from_torch(dtype).name: storage for storage, dtype in STORAGES.items()}
"""dtype -> torch's class of its storages; others are untyped."""


def writable_name(entry: OutputEntry) -> str:
    """Return torch's name of a tensor's dtype, without `torch.`.

    Raises:
        CheckpointError: torch has no such dtype.
    """
    name = None if entry.text is not None else torch_name(entry.dtype)
    if name is None:
        kind = "text" if entry.text is not None else str(entry.dtype)
        raise CheckpointError(
            f"parameter {entry.name!r} is a {kind}, for which PyTorch has no dtype; if the model does without it, "
            f"leave it out: {option('exclude', [entry.name])}"
        )
    return name


def add_format(archive: ArchiveLayout) -> None:
    """Add the records that say how an archive's data is stored."""
    archive.add(".format_version", b"1")
    archive.add(".storage_alignment", str(ALIGNMENT).encode())
    archive.add("byteorder", b"little")


def tensor_record(dtype: DType, torch_dtype: str, shape: Shape, key: str) -> PickledObject:
    """Return what a tensor's pickle calls: torch's own function, with the storage that is the record `data/{key}`."""
    elements = math.prod(shape)
    storage = _STORAGES.get(dtype.name)
    kind = Global("torch", storage) if storage else Global("torch.storage", "UntypedStorage")
    length = elements if storage else elements * dtype.itemsize
    stored = PersistentId(("storage", kind, key, "cpu", length))
    strides = row_major_strides(tuple(max(1, each) for each in shape))
    arguments: tuple[object, ...] = (
        stored,
        0,
        shape,
        strides,
        False,
        PickledObject(Global("collections", "OrderedDict"), ()),
    )
    if storage:
        return PickledObject(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    return PickledObject(Global("torch._utils", "_rebuild_tensor_v3"), (*arguments, Global("torch", torch_dtype)))
