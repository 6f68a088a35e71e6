"""Reads and plans checkpoint files of either format; a file's name decides which.

The first bytes reveal common mistakes, such as a file of another kind, which would otherwise be reported as damage.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Protocol

from reshard.core.checkpoint.digests import file_digests
from reshard.core.checkpoint.encryption.cipher_blocks import MAGICS, KeyMistakeError
from reshard.core.checkpoint.encryption.decrypted_source import DecryptedSource
from reshard.core.checkpoint.formats import ckpt, ckpt_writing, distcp, safetensors
from reshard.core.checkpoint.formats.stage_files import merge_indexes
from reshard.core.checkpoint.model import (
    MINDSPORE,
    SELF_CONTAINED,
    CheckpointFormat,
    FileIndex,
    FilePlan,
    OutputEntry,
)
from reshard.core.checkpoint.remote_index.templates import Template, template_of
from reshard.core.checkpoint.remote_reads import PrefetchedEnds
from reshard.core.errors import CheckpointError
from reshard.core.runtime.option_names import source_option
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.urls import Location

_START_BYTES = 9
_BLOCK_BYTES = 4 << 20

_KINDS = {
    b"\x0a": f"a .{CheckpointFormat.CKPT} file",
    **dict.fromkeys(MAGICS.values(), "an encrypted checkpoint file, which ends in .ckpt"),
    b"\x08": "a strategy file, not a checkpoint",
    b"{": "a JSON file, perhaps a strategy, not a checkpoint",
    b"PK\x03\x04": "a zip archive, as PyTorch saves; only MindSpore's files can be read",
    b"\x80": "a Python pickle, as old PyTorch saves; only MindSpore's files can be read",
    b"version h": "a Git LFS pointer; fetch the file itself (git lfs pull)",
}


class _FormatModule(Protocol):
    def read_index(self, file: SourceFile) -> FileIndex: ...

    def stored_crc(self, file: SourceFile) -> int | None: ...


_MODULES: dict[CheckpointFormat, _FormatModule] = {
    CheckpointFormat.CKPT: ckpt,
    CheckpointFormat.SAFETENSORS: safetensors,
}


def read_index(file: SourceFile) -> FileIndex:
    """Index a checkpoint file, or several that are read as one, from headers alone; the name decides the format.

    Raises:
        CheckpointError: the file is of another kind, or damaged; names the file and the place in it.
        StorageError: the file cannot be read.
    """
    if isinstance(file, JoinedFile):
        return merge_indexes(file, [read_index(part) for part in file.parts])
    format = format_of(file.location)
    with _blaming_the_key(file):
        file = file if file.location.is_local else PrefetchedEnds(file)
        _check_kind(file, format)
        return _MODULES[format].read_index(file)


def read_template(file: SourceFile) -> tuple[FileIndex, Template | None]:
    """Index a remote checkpoint file, and return it as a template for other files, if it is suitable."""
    if format_of(file.location) is not CheckpointFormat.CKPT or isinstance(file, JoinedFile):
        return read_index(file), None
    with _blaming_the_key(file):
        file = PrefetchedEnds(file)
        _check_kind(file, CheckpointFormat.CKPT)
        heads: list[tuple[int, bytes]] = []
        index = ckpt.read_index(file, heads)
        return index, template_of(index, heads)


def format_of(location: Location) -> CheckpointFormat:
    """Return the format by a file's name."""
    extension = PurePosixPath(location.name).suffix.removeprefix(".")
    if extension not in SELF_CONTAINED:
        raise CheckpointError(f"{location}: not a checkpoint file's name, which ends in .ckpt or .safetensors")
    return CheckpointFormat(extension)


def check_crc(file: SourceFile, index: FileIndex) -> None:
    """Read a file once and compare its CRC-32, if it carries one.

    Raises:
        CheckpointError: the CRC is wrong.
        StorageError: the file cannot be read.
    """
    if isinstance(file, JoinedFile):
        for part in file.parts:
            check_crc(part, read_index(part))
        return
    stored = stored_crc(file, index)
    if stored is None:
        return
    actual = file_digests(file, index, _BLOCK_BYTES).crc
    if actual != stored:
        raise CheckpointError(
            f"{file.location}: wrong CRC-32: the file says {stored}, its contents give {actual}: damaged"
        )


def stored_crc(file: SourceFile, index: FileIndex) -> int | None:
    """Return the CRC-32 recorded in a file; None if it carries none.

    Raises:
        CheckpointError: the file is damaged.
        StorageError: the file cannot be read.
    """
    return _MODULES[index.format].stored_crc(file) if index.has_crc else None


def plan_file(
    format: CheckpointFormat,
    entries: Sequence[OutputEntry],
    *,
    redundancy_removed: bool | None = False,
    with_crc: bool = False,
    framework: str = MINDSPORE,
) -> FilePlan:
    """Lay out the file with `entries`: literal bytes and places for contents. Equal entries give equal bytes.

    Args:
        redundancy_removed: mark that only some ranks' files hold the slices that ranks share, if the format has such a
            mark; None: unknown.
        with_crc: reserve room for a CRC; see `reshard.core.checkpoint.formats.running_crc`.
        framework: framework that the file is marked for, if the format has such a mark.

    Raises:
        CheckpointError: the format cannot hold an entry, or two have the same name.
    """
    twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
    if twice:
        raise CheckpointError(f"parameter {twice[0]!r} is given twice for one file")
    if format is CheckpointFormat.CKPT:
        return ckpt_writing.plan_file(entries, with_crc=with_crc)
    if format is CheckpointFormat.DISTCP:
        return distcp.plan_file(entries)
    return safetensors.plan_file(entries, redundancy_removed=redundancy_removed, with_crc=with_crc, framework=framework)


@contextmanager
def _blaming_the_key(file: SourceFile) -> Iterator[None]:
    """Explain errors of a decrypted file: a wrong key shows only in that the result is no checkpoint."""
    try:
        yield
    except CheckpointError as error:
        if isinstance(file, DecryptedSource):
            raise CheckpointError(
                f"{file.location}: does not decrypt to a checkpoint ({str(error).removeprefix(f'{file.location}: ')}): "
                f"{file.key_name} is not the key that it was encrypted with, or {file.mode} not the mode, or it was "
                "changed since"
            ) from None
        raise


def _check_kind(file: SourceFile, format: CheckpointFormat) -> None:
    start = read_bytes(file, 0, min(_START_BYTES, file.size_bytes))
    mode = next((mode for mode, magic in MAGICS.items() if start.startswith(magic)), None)
    if mode is not None and format is CheckpointFormat.CKPT:
        raise KeyMistakeError(
            f"{file.location}: is encrypted with {mode}: name its key with {source_option('decrypt-key')}, "
            f"and {source_option('decrypt-mode')} {mode}"
        )
    found = _kind(start, file.size_bytes)
    if found not in (None, f"a .{format} file"):
        raise CheckpointError(f"{file.location}: is named .{format}, but looks like {found}")


def _kind(start: bytes, size_bytes: int) -> str | None:
    # a safetensors header may have any length, so its first byte says nothing
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size_bytes - 8:
        return f"a .{CheckpointFormat.SAFETENSORS} file"
    return next((kind for prefix, kind in _KINDS.items() if start.startswith(prefix)), None)
