"""Reads and plans checkpoint files of either format; a file's name decides which.

The first bytes reveal common mistakes, such as a file of another kind, which would otherwise be reported as damage.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

from reshard.core.errors import CheckpointError
from reshard.core.files import ckpt, ckpt_writing, safetensors
from reshard.core.files.digests import file_digests
from reshard.core.files.encryption.cipher_blocks import MAGICS, KeyMistakeError
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.file_names import is_rank_file_of_hyper_parallel
from reshard.core.files.model import (
    MINDSPORE,
    SELF_CONTAINED,
    CheckpointFormat,
    FileIndex,
    FilePlan,
    OutputEntry,
)
from reshard.core.files.remote_reads import PrefetchedEnds
from reshard.core.files.stage_files import merge_indexes
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.urls import Location
from reshard.core.text.options import source_option

_START_BYTES = 9
_BLOCK_BYTES = 4 << 20
_LIGHTNING = b"pytorch-lightning_version"
"""A key of Lightning's checkpoints, near the beginning of the pickle."""
_HEAD_BYTES = 4096
_RENAME = "rename it to end in .pt, by which reshard knows such files"
_SAVE_AGAIN = "load it in PyTorch, and save it again with torch.save, as FILE.pt"

_KINDS = {
    b"\x0a": f"a .{CheckpointFormat.CKPT} file",
    **dict.fromkeys(MAGICS.values(), "an encrypted checkpoint file, which ends in .ckpt"),
    b"\x08": "a strategy file, not a checkpoint",
    b"{": "a JSON file, perhaps a strategy, not a checkpoint",
    b"version h": "a Git LFS pointer; fetch the file itself (git lfs pull)",
}


def read_index(file: SourceFile, heads: list[ckpt.Head] | None = None) -> FileIndex:
    """Index a checkpoint file, or several that are read as one, from headers alone; the name decides the format.

    The bytes before contents in a `.ckpt` file are added to `heads`.

    Raises:
        CheckpointError: the file is of another kind, or damaged; names the file and the place in it.
        StorageError: the file cannot be read.
    """
    if isinstance(file, JoinedFile):
        return merge_indexes(file, [read_index(part) for part in file.parts])
    format = format_of(file.location)
    with _blaming_the_key(file):
        file = file if file.location.store.is_near else PrefetchedEnds(file)
        _check_kind(file, format)
        return ckpt.read_index(file, heads) if format is CheckpointFormat.CKPT else safetensors.read_index(file)


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
    if not index.has_crc:
        return None
    return ckpt.stored_crc(file) if index.format is CheckpointFormat.CKPT else safetensors.stored_crc(file)


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
        with_crc: reserve room for a CRC; see `reshard.core.files.running_crc`.
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
        from reshard.core.files import distcp

        return distcp.plan_file(entries)
    return safetensors.plan_file(entries, redundancy_removed=redundancy_removed, with_crc=with_crc, framework=framework)


@contextmanager
def _blaming_the_key(file: SourceFile) -> Iterator[None]:
    """Explain errors of a decrypted file: a wrong key shows only in that the result is not a checkpoint."""
    try:
        yield
    except CheckpointError as error:
        if isinstance(file, DecryptedSource):
            why = error.marked.removeprefix(f"{file.location}: ")
            raise CheckpointError(
                f"{file.location}: does not decrypt to a checkpoint ({why}): "
                f"{file.key_name} is not the key that it was encrypted with, or {file.mode} not the mode, or it was "
                "changed since"
            ) from None
        raise


def _check_kind(file: SourceFile, format: CheckpointFormat) -> None:
    start = read_bytes(file, 0, min(_START_BYTES, file.size_bytes))
    mode = next((mode for mode, magic in MAGICS.items() if start.startswith(magic)), None)
    if mode is not None and format is CheckpointFormat.CKPT:
        raise KeyMistakeError(
            f"{file.location}: is encrypted with {mode}: name its key with {source_option('decrypt_key')}, "
            f"and {source_option('decrypt_mode', mode)}"
        )
    found = _kind(start, file.size_bytes) or _foreign_kind(file, start)
    if found not in (None, f"a .{format} file"):
        raise CheckpointError(f"{file.location}: is named .{format}, but looks like {found}")


def _foreign_kind(file: SourceFile, start: bytes) -> str | None:
    """Name the kind of a file that another library saved, and say what to do; None for other files."""
    is_zip = start.startswith(b"PK\x03\x04")
    if not is_zip and not start.startswith(b"\x80"):
        return None
    if is_rank_file_of_hyper_parallel(file.location.name):
        return (
            "a PyTorch archive, which hyper_parallel saves under this name if it runs on PyTorch: load the checkpoint "
            "with hyper_parallel, and save it with torch.distributed.checkpoint"
        )
    head = read_bytes(file, 0, min(_HEAD_BYTES, file.size_bytes))
    if _LIGHTNING in head:
        weights = f"{source_option('root', 'state_dict')} then takes its weights"
        return f"a checkpoint of PyTorch Lightning: {_RENAME if is_zip else _SAVE_AGAIN}; {weights}"
    if not is_zip:
        return f"a Python pickle, as old versions of PyTorch save: {_SAVE_AGAIN}"
    if b".npy" in head:
        return "a NumPy archive: load it with numpy.load, and save its arrays with safetensors.numpy.save_file"
    return f"a zip archive, as PyTorch saves: {_RENAME}"


def _kind(start: bytes, size_bytes: int) -> str | None:
    # a safetensors header may have any length, so its first byte says nothing
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size_bytes - 8:
        return f"a .{CheckpointFormat.SAFETENSORS} file"
    return next((kind for prefix, kind in _KINDS.items() if start.startswith(prefix)), None)
