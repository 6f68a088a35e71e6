"""Finds the tensors in a rank's file that a conversion wrote, and compares them with the file's record."""

import re
from collections.abc import Iterator

from reshard.core.checkpoint.manifest import ShardRecord, record_entries
from reshard.core.errors import CheckpointError
from reshard.core.files.model import CheckpointFormat, FileIndex, OutputEntry, TensorEntry
from reshard.core.files.torch_file import read_torch_file
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.megatron.shapes import file_shape
from reshard.core.layouts.megatron.spots import parse_name
from reshard.core.layouts.megatron.tensor_names import EMBEDDING, OUTPUT_LAYER
from reshard.core.runtime.pickled import Pairs
from reshard.core.storage.reading import SourceFile

_NUMBER = re.compile(r"\d+", re.ASCII)
_INERT = ("args", "opt_param_scheduler")


def read_written(file: SourceFile, record: ShardRecord) -> FileIndex:
    """Index a rank's file by the tensors of its record, which are in its storages in their order.

    Raises:
        CheckpointError: it is damaged, or does not hold these tensors.
        StorageError: it cannot be read.
    """
    entries = record_entries(record)
    # a tied embedding is in its file under two names
    places = {_offset(found): found for found in _tensors((), read_torch_file(file, inert=_INERT).root)}
    found = [places[offset] for offset in sorted(places)]
    if len(found) != len(entries):
        raise CheckpointError(f"{file.location}: has {len(found)} tensors, not {len(entries)}")
    indexed = {entry.name: _indexed(file, entry, *each) for entry, each in zip(entries, found, strict=True)}
    return FileIndex(CheckpointFormat.PT, file.size_bytes, indexed)


def _tensors(path: tuple[object, ...], value: object) -> Iterator[tuple[tuple[object, ...], StoredTensor]]:
    """The tensors below a value, with their keys."""
    if isinstance(value, StoredTensor):
        yield path, value
    elif isinstance(value, Pairs):
        for key, each in value:
            yield from _tensors((*path, key), each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _tensors((*path, number), each)


def _offset(found: tuple[tuple[object, ...], StoredTensor]) -> int:
    stored = found[1]
    return stored.extent.offset if stored.extent else stored.strided.offset if stored.strided else 0


def _indexed(file: SourceFile, entry: OutputEntry, path: tuple[object, ...], stored: StoredTensor) -> TensorEntry:
    name = parse_name(entry.name)
    expected = entry.dtype, file_shape(name.weight, entry.shape)
    if stored.extent is None or stored.is_lazy or (stored.dtype, stored.shape) != expected:
        raise CheckpointError(
            f"{file.location}: parameter {entry.name!r} should be {expected[0]} {list(expected[1])} there, it is "
            f"{stored.dtype} {list(stored.shape)}{'' if stored.extent else ', not in order'}"
        )
    # layers and experts have other numbers in the file
    names = {_unnumbered(name.weight)} | ({OUTPUT_LAYER} if name.weight == EMBEDDING else set())
    if not name.slot and _unnumbered(path[-1]) not in names:
        raise CheckpointError(f"{file.location}: has {path[-1]!r} in the place of parameter {entry.name!r}")
    return TensorEntry(entry.name, entry.dtype, entry.shape, (stored.extent,))


def _unnumbered(name: object) -> str:
    return _NUMBER.sub("#", str(name))
