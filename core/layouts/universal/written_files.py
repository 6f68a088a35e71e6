"""Finds the tensors in a file that a conversion wrote, and compares them with the file's record."""

from reshard.core.checkpoint.manifest import ShardRecord, record_entries
from reshard.core.errors import CheckpointError
from reshard.core.files.model import CheckpointFormat, FileIndex, OutputEntry, TensorEntry
from reshard.core.files.torch_file import read_torch_file
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.universal.names import MODEL_NAMES
from reshard.core.layouts.universal.training import LOSS_SCALER
from reshard.core.runtime.pickled import Pairs
from reshard.core.storage.reading import SourceFile


def read_written(file: SourceFile, record: ShardRecord) -> FileIndex:
    """Index a file by the tensors of its record, which it holds under `param`, or by their names under `module`.

    Raises:
        CheckpointError: it is damaged, or does not hold these tensors.
        StorageError: it cannot be read.
    """
    entries = {entry.name: entry for entry in record_entries(record)}
    root = read_torch_file(file, inert=(LOSS_SCALER,)).root
    fields = dict(root) if isinstance(root, Pairs) else {}
    if record.file in MODEL_NAMES:
        module = fields.get("module")
        found = dict(module) if isinstance(module, Pairs) else {}
    else:
        found = dict.fromkeys(entries, fields.get("param"))
    if found.keys() != entries.keys():
        raise CheckpointError(f"{file.location}: has {list(found)} in place of {list(entries)}")
    indexed = {name: _indexed(file, entry, found[name]) for name, entry in entries.items()}
    return FileIndex(CheckpointFormat.PT, file.size_bytes, indexed)


def _indexed(file: SourceFile, entry: OutputEntry, stored: object) -> TensorEntry:
    if not isinstance(stored, StoredTensor):
        raise CheckpointError(f"{file.location}: has no tensor in the place of parameter {entry.name!r}")
    if stored.extent is None or (stored.dtype, stored.shape) != (entry.dtype, entry.shape):
        raise CheckpointError(
            f"{file.location}: parameter {entry.name!r} should be {entry.dtype} {list(entry.shape)} there, it is "
            f"{stored.dtype} {list(stored.shape)}{'' if stored.extent else ', not in order'}"
        )
    return TensorEntry(entry.name, entry.dtype, entry.shape, (stored.extent,))
