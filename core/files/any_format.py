"""Reads and plans checkpoint files of either format; a file's name decides which.

The first bytes reveal common mistakes, such as a file of another kind, which would otherwise be reported as damage.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from operator import add, attrgetter
from pathlib import PurePosixPath
from threading import Lock
from typing import NamedTuple, Protocol

from reshard.core.errors import CheckpointError
from reshard.core.files import ckpt, ckpt_writing, safetensors
from reshard.core.files.digests import file_digests
from reshard.core.files.encryption.cipher_blocks import MAGICS, KeyMistakeError
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.model import (
    MINDSPORE,
    SELF_CONTAINED,
    CheckpointFormat,
    FileIndex,
    FilePlan,
    OutputEntry,
)
from reshard.core.files.remote_index.templates import Template, template_of
from reshard.core.files.remote_reads import PrefetchedEnds
from reshard.core.files.stage_files import merge_indexes
from reshard.core.layouts.dcp.names import is_rank_file_of_hyper_parallel
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.option_names import source_option
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.urls import Location

_START_BYTES = 9
_BLOCK_BYTES = 4 << 20
_MAX_KNOWN_INDEXES = 8
_HEADER_GAP_BYTES = 16 << 10
"""Reading so much between two headers takes less time than another read call."""
_LIGHTNING = b"pytorch-lightning_version"
"""A key of Lightning's checkpoints, near the beginning of the pickle."""
_HEAD_BYTES = 4096
_SAVE_WITH_TORCH = "load it with torch.load, and save its tensors with safetensors.torch.save_file"
_MAX_HEADER_BYTES = 32 << 20
"""Of a file whose headers are kept for comparison."""

_EXTENTS, _OFFSET, _LENGTH = map(attrgetter, ("extents", "offset", "length"))

_KINDS = {
    b"\x0a": f"a .{CheckpointFormat.CKPT} file",
    **dict.fromkeys(MAGICS.values(), "an encrypted checkpoint file, which ends in .ckpt"),
    b"\x08": "a strategy file, not a checkpoint",
    b"{": "a JSON file, perhaps a strategy, not a checkpoint",
    b"version h": "a Git LFS pointer; fetch the file itself (git lfs pull)",
}


class _FormatModule(Protocol):
    def read_index(self, file: SourceFile, heads: list[tuple[int, bytes]] | None = None) -> FileIndex: ...

    def stored_crc(self, file: SourceFile) -> int | None: ...


_MODULES: dict[CheckpointFormat, _FormatModule] = {
    CheckpointFormat.CKPT: ckpt,
    CheckpointFormat.SAFETENSORS: safetensors,
}


class KnownIndexes:
    """The latest indexes of local files, each with its file's headers: the bytes between contents.

    An index follows from a file's format, its size and its headers. The ranks of a stage often share all three, and
    comparing headers takes a tenth of the time of parsing them. Safe for use by many threads.
    """

    def __init__(self) -> None:
        self._known: deque[_KnownIndex] = deque(maxlen=_MAX_KNOWN_INDEXES)
        self._first = Lock()
        self._has_begun = False

    def index_of(self, file: SourceFile) -> FileIndex:
        """Return a local file's index, parsed unless it is known.

        The first file is indexed alone. Threads that begin together wait for it, and then most often know its index.
        """
        with self._first:
            if not self._has_begun:
                self._has_begun = True
                return self._found_or_parsed(file)
        return self._found_or_parsed(file)

    def _found_or_parsed(self, file: SourceFile) -> FileIndex:
        index = self.find(file)
        if index is None:
            heads: list[tuple[int, bytes]] = []
            index = _read_index(file, heads)
            self.learn(index, heads)
        return index

    def find(self, file: SourceFile) -> FileIndex | None:
        """Return the index of an earlier file that is this one's, too; None if there is none."""
        format, has_crc = format_of(file.location), None
        for known in tuple(self._known):
            index = known.index
            if (index.format, index.size_bytes) == (format, file.size_bytes):
                if format is CheckpointFormat.CKPT and has_crc is None:
                    has_crc = ckpt.has_crc(file)
                if has_crc in (None, index.has_crc) and all(each.is_in(file) for each in known.headers):
                    return index
        return None

    def learn(self, index: FileIndex, heads: Sequence[tuple[int, bytes]]) -> None:
        """Remember a file's index, if the bytes `heads` at their offsets are all that lies around its contents."""
        extents = list(chain.from_iterable(map(_EXTENTS, index.entries.values())))
        starts, lengths = list(map(_OFFSET, extents)), map(_LENGTH, extents)
        *ends, last = 0, *map(add, starts, lengths)  # of the contents before each; by map: there may be thousands
        headers = list(map(dict(heads).get, ends, repeat(b"")))
        if list(map(add, ends, map(len, headers))) != starts or sum(map(len, headers)) > _MAX_HEADER_BYTES:
            return
        crc_bytes = ckpt.CRC_TRAILER_BYTES if index.has_crc and index.format is CheckpointFormat.CKPT else 0
        if last == index.size_bytes - crc_bytes:
            together = _read_together((end, header) for end, header in zip(ends, headers, strict=True) if header)
            self._known.append(_KnownIndex(index, tuple(together)))


class _Headers(NamedTuple):
    """Headers of a file that are read together, with the contents between them."""

    offset: int
    length: int
    places: list[slice]
    texts: list[bytes]

    def is_in(self, file: SourceFile) -> bool:
        """True if another file has them at the same places."""
        found = read_bytes(file, self.offset, self.length)
        return list(map(found.__getitem__, self.places)) == self.texts


@frozen
class _KnownIndex:
    index: FileIndex
    headers: tuple[_Headers, ...]


def _read_together(headers: Iterable[tuple[int, bytes]]) -> Iterator[_Headers]:
    """Group headers, given with their offsets in order, that lie close together."""
    start = end = 0
    places: list[slice] = []
    texts: list[bytes] = []
    for offset, header in headers:
        stop = offset + len(header)
        if texts and (offset - end > _HEADER_GAP_BYTES or stop - start > _BLOCK_BYTES):
            yield _Headers(start, end - start, places, texts)
            places, texts = [], []
        if not texts:
            start = offset
        places.append(slice(offset - start, stop - start))
        texts.append(header)
        end = stop
    if texts:
        yield _Headers(start, end - start, places, texts)


def read_index(file: SourceFile, known: KnownIndexes | None = None) -> FileIndex:
    """Index a checkpoint file, or several that are read as one, from headers alone; the name decides the format.

    A local file may turn out to have a `known` index.

    Raises:
        CheckpointError: the file is of another kind, or damaged; names the file and the place in it.
        StorageError: the file cannot be read.
    """
    if isinstance(file, JoinedFile):
        return merge_indexes(file, [read_index(part, known) for part in file.parts])
    if known is None or not file.location.is_local:
        return _read_index(file)
    return known.index_of(file)


def _read_index(file: SourceFile, heads: list[tuple[int, bytes]] | None = None) -> FileIndex:
    format = format_of(file.location)
    with _blaming_the_key(file):
        file = file if file.location.is_local else PrefetchedEnds(file)
        _check_kind(file, format)
        return _MODULES[format].read_index(file, heads)


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
        return f"a checkpoint of PyTorch Lightning: {_SAVE_WITH_TORCH}"
    if not is_zip:
        return f"a Python pickle, as old versions of PyTorch save: {_SAVE_WITH_TORCH}"
    if b".npy" in head:
        return "a NumPy archive: load it with numpy.load, and save its arrays with safetensors.numpy.save_file"
    return f"a zip archive, as PyTorch saves: {_SAVE_WITH_TORCH}"


def _kind(start: bytes, size_bytes: int) -> str | None:
    # a safetensors header may have any length, so its first byte says nothing
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size_bytes - 8:
        return f"a .{CheckpointFormat.SAFETENSORS} file"
    return next((kind for prefix, kind in _KINDS.items() if start.startswith(prefix)), None)
