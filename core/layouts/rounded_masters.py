"""The proof that an optimizer's masters are the tensors of the model that they are taken for.

A training makes its model of float32 masters: rounded to the model's dtype, they are the model, bit for bit. What an
optimizer keeps beside its masters is ordered as these are, so what holds for them holds for all of it.
"""

from collections.abc import Sequence
from contextlib import closing
from threading import Event

import numpy as np

from reshard.core.files.remote_reads import whole_file_readers
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.reading import SourceFile, open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.casting import NUMPY_TYPES, cast_bits

_BLOCK_ELEMENTS = 1 << 20


class MasterPair(Record):
    """A master, or elements of it, and the same elements of the model; `name` is the model's."""

    name: str
    master: StoredTensor
    model: StoredTensor


class StoredFile(Record):
    """A file to read: its URL and its version."""

    location: str
    version: str


class MasterFile(Record):
    """The masters in a file, and the file of their model."""

    masters: StoredFile
    model: StoredFile
    pairs: tuple[MasterPair, ...]


def differing_masters(files: Sequence[MasterFile], workers: int) -> tuple[MasterFile, str] | None:
    """Compare masters with the model; return the first file with one that is not the model's, and its name.

    Raises:
        StorageError: a file cannot be read.
    """
    files = [file for file in files if file.pairs]
    if not files:
        return None
    sizes = [pair.master.extent.length for file in files for pair in file.pairs if pair.master.extent]
    current_progress().begin("comparing the optimizer's masters with the model", sum(sizes))
    at_once = whole_file_readers(parse_url(files[0].masters.location), workers)
    for file, name in zip(files, in_threads(_first_differing, files, at_once, Event()), strict=True):
        if name is not None:
            return file, name
    return None


def _first_differing(file: MasterFile) -> str | None:
    with closing(_opened(file.masters)) as masters, closing(_opened(file.model)) as model:
        return next((pair.name for pair in file.pairs if not _is_model(masters, model, pair)), None)


def _opened(file: StoredFile) -> SourceFile:
    return open_source(parse_url(file.location), file.version)


def _is_model(masters: SourceFile, model: SourceFile, pair: MasterPair) -> bool:
    master, tensor = pair.master, pair.model
    if master.extent is None or tensor.extent is None or tensor.dtype.name not in NUMPY_TYPES:
        return False
    count = master.extent.length // master.dtype.itemsize
    for start in range(0, count, _BLOCK_ELEMENTS):
        stop = min(start + _BLOCK_ELEMENTS, count)
        rounded = cast_bits(_elements(masters, master, start, stop), master.dtype, tensor.dtype)
        if not np.array_equal(rounded, _elements(model, tensor, start, stop)):
            return False
        current_progress().advance((stop - start) * master.dtype.itemsize)
    return True


def _elements(file: SourceFile, stored: StoredTensor, start: int, stop: int) -> np.ndarray:
    """The bits of elements of a tensor in C order."""
    item = stored.dtype.itemsize
    offset = stored.extent.offset if stored.extent else 0
    return np.frombuffer(read_bytes(file, offset + start * item, (stop - start) * item), f"<u{item}")
