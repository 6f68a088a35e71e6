"""Which kind of file it is, and that kind's reading and planning.

A file's name says what it is meant to be; its first bytes tell the common mistakes, which would otherwise be reported
as damage.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Protocol

from core.checkpoint import ckpt, safetensors
from core.checkpoint.heads import Template, template_of
from core.checkpoint.model import CheckpointFormat, FileIndex, FilePlan, OutputEntry
from core.checkpoint.reading import WithEnds
from core.errors import CheckpointError
from core.storage.files import SourceFile, read_bytes
from core.storage.urls import Location

_START_BYTES = 9

_KINDS = {
    b"\x0a": f"a .{CheckpointFormat.CKPT} file",
    b"\xd8\x5e\x3a\x7f": "an encrypted checkpoint file (AES-GCM); decrypt it first",
    b"\xd9\x5e\x3a\x7f": "an encrypted checkpoint file (AES-CBC); decrypt it first",
    b"\xda\x5e\x3a\x7f": "an encrypted checkpoint file (SM4-CBC); decrypt it first",
    b"\x08": "a strategy file, not a checkpoint",
    b"{": "a JSON file, perhaps a strategy, not a checkpoint",
    b"PK\x03\x04": "a zip archive, as PyTorch saves; only MindSpore's files can be read",
    b"\x80": "a Python pickle, as old PyTorch saves; only MindSpore's files can be read",
    b"version h": "a Git LFS pointer; fetch the file itself (git lfs pull)",
}


class _FormatModule(Protocol):
    def read_index(self, file: SourceFile) -> FileIndex: ...

    def check_crc(self, file: SourceFile, index: FileIndex) -> None: ...

    def plan_file(self, entries: Sequence[OutputEntry]) -> FilePlan: ...


_MODULES: dict[CheckpointFormat, _FormatModule] = {
    CheckpointFormat.CKPT: ckpt,
    CheckpointFormat.SAFETENSORS: safetensors,
}


def read_index(file: SourceFile) -> FileIndex:
    """What a checkpoint file holds, from its headers alone; its format is its name's extension.

    Raises:
        CheckpointError: it is of another kind, damaged, or holds an unknown dtype; names the file and where in it.
        StorageError: it cannot be read.
    """
    format = format_of(file.location)
    file = file if file.location.is_local else WithEnds(file)
    _check_kind(file, format)
    return _MODULES[format].read_index(file)


def read_template(file: SourceFile) -> tuple[FileIndex, Template | None]:
    """What a remote checkpoint file holds, and a template that other files may follow, if it can be one.

    Raises:
        CheckpointError: it is of another kind, damaged, or holds an unknown dtype; names the file and where in it.
        StorageError: it cannot be read.
    """
    if format_of(file.location) is not CheckpointFormat.CKPT:
        return read_index(file), None
    file = WithEnds(file)
    _check_kind(file, CheckpointFormat.CKPT)
    index, heads = ckpt.read_index_and_heads(file)
    return index, template_of(index, heads)


def format_of(location: Location) -> CheckpointFormat:
    """The format that a file's name says it has.

    Raises:
        CheckpointError: it says none.
    """
    extension = PurePosixPath(location.name).suffix.removeprefix(".")
    if extension not in [*CheckpointFormat]:
        raise CheckpointError(f"{location}: not a checkpoint file's name, which ends in .ckpt or .safetensors")
    return CheckpointFormat(extension)


def check_crc(file: SourceFile, index: FileIndex) -> None:
    """Reads the file once and compares its CRC-32; does nothing where it carries none.

    Raises:
        CheckpointError: the CRC is wrong.
        StorageError: it cannot be read.
    """
    _MODULES[index.format].check_crc(file, index)


def plan_file(format: CheckpointFormat, entries: Sequence[OutputEntry]) -> FilePlan:
    """The file that holds `entries`: literal bytes and places for contents. The same entries give the same bytes.

    Raises:
        CheckpointError: the format cannot hold one of the entries, or two have the same name.
    """
    twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
    if twice:
        raise CheckpointError(f"parameter {twice[0]!r} is given twice for one file")
    return _MODULES[format].plan_file(entries)


def _check_kind(file: SourceFile, format: CheckpointFormat) -> None:
    start = read_bytes(file, 0, min(_START_BYTES, file.size_bytes))
    found = _kind(start, file.size_bytes)
    if found not in (None, f"a .{format} file"):
        raise CheckpointError(f"{file.location}: is named .{format}, but looks like {found}")


def _kind(start: bytes, size_bytes: int) -> str | None:
    # a safetensors header may have any length, so its first byte says nothing
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size_bytes - 8:
        return f"a .{CheckpointFormat.SAFETENSORS} file"
    return next((kind for prefix, kind in _KINDS.items() if start.startswith(prefix)), None)
