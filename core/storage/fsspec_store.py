"""Any storage that fsspec has a filesystem for, through fsspec's common interface."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from reshard.core.errors import InputError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.suggestions import close_words
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.store import DIRECTORY, FILE, OTHER, Buffer, Entry, Output, Reader, Reason, Store
from reshard.core.storage.system_errors import reason_of_system
from reshard.core.text.secrets import scrubbed

Options = Mapping[str, Any]

_PACKAGES = {"hdfs": "pyarrow"}
"""Packages to install for a protocol; fsspec has advice for others."""
_USUAL = ("file", "s3", "obs", "gs", "abfs", "hdfs")
_VERSIONS = ("ETag", "etag", "md5", "LastModified", "mtime", "created")
_TIMES = ("LastModified", "last_modified", "mtime", "created")
_IN_MEMORY = ("memory", "reference")


def open_by_fsspec(url: str, protocol: str, options: Options) -> tuple[Store, str]:
    """Return the store of a URL, and the path in it.

    Raises:
        InputError: fsspec does not know the protocol, or cannot open the URL.
    """
    if "::" in protocol or ("::" in url and "://" in url.partition("://")[2]):
        raise InputError(f"{url!r}: chains of URLs cannot be used")
    try:
        kind = _class_of(url, protocol)
        path, url_options = _parse(kind, url)
        if _is_local(kind):
            return LOCAL_DISK, path
        settings = dict(options)
        fs = kind(**settings | url_options)
    except InputError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        advice = f"pip install {package}" if package else error
        raise InputError(f"{url!r}: {protocol}:// needs a package that is not installed: {advice}") from error
    except Exception as error:  # the packages behind fsspec raise anything about a URL that they cannot use
        raise InputError(f"{url!r}: cannot be opened: {scrubbed(str(error))}") from error
    store = FsspecStore(fs)
    written = store.url(path)
    path_again, options_again = _parse(kind, written)
    if path_again != path or settings | options_again != settings | url_options:
        raise InputError(
            f"{url!r}: cannot be used, since records would name it {written}, which is another place. "
            "Move the storage's settings from the URL to storage options"
        )
    return store, path


def _class_of(url: str, protocol: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        near = close_words(protocol, [*fsspec.available_protocols(), "obs"], 3) or _USUAL
        names = ", ".join(f"{name}://" for name in dict.fromkeys(near))
        raise InputError(f"{url!r}: unknown storage {protocol}://; known are {names} and others") from error


def _is_local(kind: type) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return issubclass(kind, LocalFileSystem)


def _parse(kind: Any, url: str) -> tuple[str, dict[str, Any]]:
    """Split a URL into its path and the options that it carries."""
    return str(kind._strip_protocol(url)), kind._get_kwargs_from_urls(url)  # noqa: SLF001 (fsspec's own interface)


class FsspecStore(Store):
    """A filesystem of fsspec."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        self.is_lasting = not set(protocols) & set(_IN_MEMORY)

    def __eq__(self, other: object) -> bool:
        """True for the same filesystem with the same options."""
        return isinstance(other, FsspecStore) and bool(self.fs == other.fs)

    def __hash__(self) -> int:
        """Return the filesystem's hash."""
        return hash(self.fs)

    def url(self, path: str) -> str:
        """Format a path as a URL."""
        url = str(self.fs.unstrip_protocol(path))
        options = self.fs.storage_options
        if not options.get("host"):
            return url
        protocol, _, path = url.partition("://")
        user, port = options.get("username") or options.get("user"), options.get("port")
        authority = (f"{user}@" if user else "") + options["host"] + (f":{port}" if port else "")
        return f"{protocol}://{authority}/{path.removeprefix('/')}"

    def stat(self, path: str) -> Entry:
        """Describe a file or directory."""
        self.fs.invalidate_cache()
        return _entry(self.fs.info(path))

    def list(self, path: str) -> Sequence[Entry]:
        """Describe everything in a directory, or a file itself."""
        self.fs.invalidate_cache(path)
        return [entry for entry in _entries(self.fs.ls(path, detail=True)) if entry.path != path or entry.kind == FILE]

    def find(self, path: str) -> Sequence[Entry]:
        """Describe all files below a directory."""
        self.fs.invalidate_cache(path)
        found = _entries(self.fs.find(path, detail=True).values())
        return sorted((entry for entry in found if entry.kind != DIRECTORY), key=lambda entry: entry.path)

    def open(self, path: str, version: str = "") -> Reader:
        """Open a file, whatever its version."""
        found = self.stat(path)
        if found.kind == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _Reader(self.fs, found)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a file."""
        return bytes(self.fs.cat_file(path, start=0, end=max_bytes))

    def put(self, path: str, data: bytes) -> str:
        """Write a small file."""
        self.fs.pipe_file(path, data)
        return ""

    def create(self, path: str, buffers: UploadBuffers) -> Output:
        """Begin to write a file; on some filesystems it has its name at once."""
        return _Output(self.fs, path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        self.fs.cp_file(source, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.fs.rm_file(path)

    def is_same(self, other: Store) -> bool:
        """True for the same filesystem with the same options."""
        return self == other

    def reason_of(self, error: Exception, path: str) -> Reason | None:
        """Explain an error of the operating system, or of a known client."""
        return reason_of_system(error)


class _Reader:
    is_proven = False

    def __init__(self, fs: Any, found: Entry) -> None:
        self._fs = fs
        self._path = found.path
        self.size_bytes = found.size_bytes
        self.version = found.file_version

    def read_into(self, offset: int, parts: Sequence[memoryview]) -> int:
        length = sum(map(len, parts))
        data = memoryview(self._fs.cat_file(self._path, start=offset, end=offset + length))
        if len(data) != length:
            raise ConnectionError(f"wrong length: got {len(data)} of {length} bytes")
        for part in parts:
            part[:] = data[: len(part)]
            data = data[len(part) :]
        return length

    def close(self) -> None:
        pass


class _Output:
    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path
        self._file = fs.open(path, "wb")

    def write(self, buffer: Buffer) -> None:
        self._file.write(buffer)

    def finish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        from fsspec.spec import AbstractBufferedFile

        if isinstance(self._file, AbstractBufferedFile):
            # closing would complete the object: drop what is pending instead
            self._file.closed = True
            self._file.discard()
        else:
            self._file.close()
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path)


def _entries(found: Iterable[Mapping[str, Any]]) -> list[Entry]:
    return [_entry(each) for each in found]


def _entry(info: Mapping[str, Any]) -> Entry:
    kind = {"file": FILE, "directory": DIRECTORY}.get(info["type"], OTHER)
    size_bytes = int(info.get("size") or 0)
    path = str(info["name"])
    if path.endswith("/") and len(path) > 1:
        path, kind = path.rstrip("/"), kind if size_bytes else DIRECTORY
    version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name)), "")
    changed = next((info[name] for name in _TIMES if info.get(name)), None)
    return Entry(path, kind, size_bytes, version, _seconds(changed), bool(info.get("islink")))


def _seconds(moment: Any) -> float | None:
    if isinstance(moment, datetime):
        return moment.timestamp()
    return float(moment) if isinstance(moment, int | float) else None
