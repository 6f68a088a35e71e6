"""Archives, `zip://inner/dir::s3://bucket/a.zip` and `tar://inner/dir::/data/a.tar`: their members are read in place.

A member is a range of the archive, so reading it at an offset is one read of the archive, and nothing is unpacked.
Compressed members have no such range. An archive's members have the version of the archive, which is looked at whenever
one of them is looked for: one that was replaced is indexed again.
"""

import errno
import io
import os
import posixpath
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from reshard.core.errors import LimitError
from reshard.core.runtime.metadata import check_metadata
from reshard.core.runtime.records import Record
from reshard.core.storage.read_only import ReadOnlyStore
from reshard.core.storage.store import (
    DIRECTORY,
    FILE,
    OTHER,
    Entry,
    Reader,
    Reason,
    Store,
)

_BUFFER_BYTES = 2**16
"""Read at a time while an archive is indexed: the headers of small members lie close together."""
_LOCAL_HEADER_BYTES = 30
_MEMBER_BYTES = 2048
"""Memory for a member in the index, and in the library's."""
_LEAST_ENTRY_BYTES = 46
"""Of a member in a zip archive's own index, which is read at once."""
_ENCRYPTED = 1
_DAMAGED = "the archive is truncated or damaged"
_ENDS_EARLY = "the archive ends before it: it is truncated or damaged"


class ArchiveError(Exception):
    """An archive, or a member of it, cannot be read."""


class _Member(Record):
    """A file in an archive.

    Attributes:
        offset: of its contents in a tar archive, and of the header before them in a zip archive.
        refusal: why it cannot be read; empty if it can.
    """

    size_bytes: int
    offset: int
    refusal: str = ""
    kind: str = FILE


class _Opened(Record):
    """An archive of one version, open for reading."""

    reader: Reader
    version: str
    members: Mapping[str, _Member]
    folders: Mapping[str, frozenset[str]]
    """Directory -> the paths right in it."""


class ArchiveStore(ReadOnlyStore):
    """The files in an archive. Paths begin with a slash, which is the archive's root.

    Attributes:
        store: the storage that the archive is on.
        archive_path: its path there.
    """

    place: ClassVar[str] = "an archive"

    def __init__(self, protocol: str, store: Store, path: str) -> None:
        self.protocol = protocol
        self.store = store
        self.archive_path = path
        self._last: _Opened | None = None

    def url(self, path: str) -> str:
        """Format a path in front of the archive's URL."""
        return f"{self.protocol}://{path.lstrip('/')}::{self.store.url(self.archive_path)}"

    def stat(self, path: str) -> Entry:
        """Describe a file or directory in the archive as it is now."""
        return _entry(self._opened(), path)

    def list(self, path: str) -> Sequence[Entry]:
        """Describe everything right in a directory, or a file itself."""
        opened = self._opened()
        own = _entry(opened, path)
        return [_entry(opened, each) for each in opened.folders[path]] if own.kind == DIRECTORY else [own]

    def find(self, path: str) -> Sequence[Entry]:
        """Describe all files below a directory."""
        opened = self._opened()
        below = path.rstrip("/") + "/"
        return [_entry(opened, each) for each in sorted(opened.members) if each.startswith(below) or each == path]

    def open(self, path: str, version: str = "") -> Reader:
        """Open a file of the archive as it is now."""
        opened = self._opened()
        entry = _entry(opened, path)
        if entry.kind == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        member = opened.members[path]
        if member.refusal:
            raise ArchiveError(member.refusal)
        offset = _contents_offset(opened.reader, member.offset) if self.protocol == "zip" else member.offset
        if offset + member.size_bytes > opened.reader.size_bytes:
            raise ArchiveError(_ENDS_EARLY)
        return _Reader(opened.reader, offset, entry)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a file."""
        reader = self.open(path)
        return _read(reader, 0, min(max_bytes, reader.size_bytes))

    def origin(self, path: str) -> tuple[Store, str]:
        """Return the place of the archive."""
        return self.store.origin(self.archive_path)

    def reason_of_reading(self, error: Exception, path: str) -> Reason | None:
        """Explain what is wrong with the archive, or an error of the storage that it is on."""
        if isinstance(error, ArchiveError):
            return Reason(str(error))
        return self.store.reason_of(error, self.archive_path)

    def _opened(self) -> _Opened:
        version = self.store.stat(self.archive_path).file_version
        if self._last is None or self._last.version != version:
            reader = self.store.open(self.archive_path, version)
            members = _members(self.protocol, reader, self.store.url(self.archive_path))
            self._last = _Opened(reader, reader.version, members, _folders(members))
        return self._last


class _Reader:
    def __init__(self, archive: Reader, offset: int, entry: Entry) -> None:
        self._archive = archive
        self._offset = offset
        self.is_proven = archive.is_proven
        self.size_bytes = entry.size_bytes
        self.version = entry.file_version

    def read_into(self, offset: int, parts: Sequence[memoryview]) -> int:
        inside = _first_bytes(parts, max(0, self.size_bytes - offset))
        return self._archive.read_into(self._offset + offset, inside) if inside else 0

    def close(self) -> None:
        """Leave the archive open, for its other members."""


def _first_bytes(parts: Sequence[memoryview], max_bytes: int) -> list[memoryview]:
    """Return the beginning of buffers that are filled one after another; behind it, another file would begin."""
    found = []
    for part in parts:
        taken = part[:max_bytes]
        max_bytes -= len(taken)
        if taken:
            found.append(taken)
    return found


def _entry(opened: _Opened, path: str) -> Entry:
    if path in opened.members:
        member = opened.members[path]
        return Entry(path, member.kind, member.size_bytes, opened.version)
    if path in opened.folders:
        return Entry(path, DIRECTORY)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _members(protocol: str, reader: Reader, origin: str) -> dict[str, _Member]:
    """Index an archive. A name that it has several times means the last of them, as when it is unpacked."""
    file = _RawFile(reader, origin)
    found = dict[str, _Member]()
    try:
        for name, member in _INDEXES[protocol](io.BufferedReader(file, _BUFFER_BYTES)):
            found[_path_of(name)] = member
            check_metadata(len(found) * _MEMBER_BYTES, origin)
        return found
    except (ArchiveError, LimitError):
        raise
    except Exception as error:  # damage can make the library raise anything
        if file.failure:
            raise file.failure from None
        raise ArchiveError(f"not a {protocol} archive, or a damaged one: {error}") from error


def _path_of(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise ArchiveError(f"the archive has a member {name!r}, whose name leads out of it")
    return "/" + "/".join(parts)


def _folders(members: Mapping[str, _Member]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {"/": set()}
    for path in members:
        while path != "/":
            parent = posixpath.dirname(path)
            is_known = parent in found
            found.setdefault(parent, set()).add(path)
            if is_known:
                break
            path = parent
    return {path: frozenset(inside) for path, inside in found.items()}


def _in_zip(file: io.BufferedReader) -> Iterator[tuple[str, _Member]]:
    with zipfile.ZipFile(file) as archive:
        for each in archive.infolist():
            if each.is_dir():
                continue
            kind = OTHER if stat.S_ISLNK(each.external_attr >> 16) else FILE
            refusal = ""
            if kind == OTHER:
                refusal = "is a link"
            elif each.flag_bits & _ENCRYPTED:
                refusal = "is encrypted in the archive: unpack it"
            elif each.compress_type != zipfile.ZIP_STORED:
                refusal = (
                    "is compressed in the archive, and cannot be read in parts: unpack the archive, or make it without "
                    "compression (zip -0)"
                )
            elif each.file_size != each.compress_size:
                refusal = "is damaged in the archive: it has two sizes"
            yield each.filename, _Member(each.file_size, each.header_offset, refusal, kind)


def _in_tar(file: io.BufferedReader) -> Iterator[tuple[str, _Member]]:
    try:
        archive = tarfile.open(fileobj=file, mode="r:")
    except tarfile.ReadError as error:
        raise ArchiveError(
            "not a tar archive, or a compressed one: unpack it, or make it without compression"
        ) from error
    with archive:
        links = []
        found: dict[str, _Member] = {}
        for each in archive:
            if each.size < 0:  # the next one would lie before it
                raise ArchiveError(_DAMAGED)
            if each.isreg():
                refusal = "is a sparse file in the archive: unpack it" if each.issparse() else ""
                member = found[_path_of(each.name)] = _Member(each.size, each.offset_data, refusal)
                yield each.name, member
            elif each.islnk() or each.issym():
                links.append(each)
        # the library takes a damaged header for the end
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ArchiveError(_DAMAGED)
    for each in links:
        folder = posixpath.dirname(each.name) if each.issym() else ""
        target = found.get(posixpath.normpath(posixpath.join("/", folder, each.linkname)))
        yield each.name, target or _Member(0, 0, "is a link to no file of the archive", OTHER)


_INDEXES: Mapping[str, Callable[[io.BufferedReader], Iterator[tuple[str, _Member]]]] = {"zip": _in_zip, "tar": _in_tar}


def _contents_offset(reader: Reader, offset: int) -> int:
    """Return where the contents begin behind a zip archive's header, whose extra field may differ from the index's."""
    header = _read(reader, offset, _LOCAL_HEADER_BYTES)
    if header[:4] != b"PK\x03\x04":
        raise ArchiveError("the archive has no member where its index says: it is damaged")
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return offset + _LOCAL_HEADER_BYTES + lengths


def _read(reader: Reader, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    if length and reader.read_into(offset, [memoryview(buffer)]) < length:
        raise ArchiveError(_ENDS_EARLY)
    return bytes(buffer)


class _RawFile(io.RawIOBase):
    """A file of a storage, as Python's libraries read files."""

    def __init__(self, reader: Reader, origin: str) -> None:
        self._reader = reader
        self._origin = origin
        self._offset = 0
        self.failure: Exception | None = None
        """Of the storage."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._reader.size_bytes}[whence]
        if begin + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._offset = begin + offset
        return self._offset

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = max(0, min(len(buffer), self._reader.size_bytes - self._offset))
        if length:
            check_metadata(length // _LEAST_ENTRY_BYTES * _MEMBER_BYTES, self._origin)
            try:
                self._reader.read_into(self._offset, [memoryview(buffer)[:length]])
            except Exception as error:
                self.failure = error
                raise
        self._offset += length
        return length
