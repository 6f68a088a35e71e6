"""Any storage that fsspec has a filesystem for, through fsspec's common interface."""

import errno
import os
import posixpath
import threading
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from reshard.core.errors import InputError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.suggestions import close_words
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.ranges import RangeReader
from reshard.core.storage.store import DIRECTORY, FILE, OTHER, Buffer, Entry, Output, Reader, Reason, Store
from reshard.core.storage.system_errors import reason_of_system
from reshard.core.text.secrets import scrubbed

Options = Mapping[str, Any]

_PACKAGES = {"hdfs": "pyarrow"}
"""Packages to install for a protocol; fsspec has advice for others."""
_USUAL = ("file", "s3", "obs", "gs", "abfs", "hdfs")
_VERSIONS = ("ETag", "etag", "e_tag", "md5", "sha", "hex", "checksum")
_TIMES = ("LastModified", "last_modified", "modified", "mtime", "modify", "modificationTime", "created")
"""Names under which filesystems have the version of a file, and the time of its last change."""
_MILLISECONDS_SINCE = 10**11
"""Some filesystems count milliseconds: as seconds this is the year 5138."""

_connecting = threading.Lock()
"""One connection after another: servers drop some of those that are begun at once."""
os.register_at_fork(before=_connecting.acquire, after_in_parent=_connecting.release, after_in_child=_connecting.release)


def open_by_fsspec(url: str, protocol: str, options: Options) -> tuple[Store, str]:
    """Return the store of a URL, and the path in it.

    Raises:
        InputError: fsspec does not know the protocol, or cannot open the URL.
    """
    try:
        kind = _class_of(url, protocol)
        path, url_options = _parse(kind, url)
        if _is_local(kind):
            return LOCAL_DISK, path
        if _is_link(kind):
            raise ValueError(f"{protocol}:// is applied to another URL: write {protocol}://PATH::URL")
        settings = dict(options)
        store = FsspecStore(kind(**settings | url_options))
    except InputError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        advice = f"pip install {package}" if package else error
        raise InputError(f"{url!r}: {protocol}:// needs a package that is not installed: {advice}") from error
    except Exception as error:  # the packages behind fsspec raise anything about a URL that they cannot use
        raise InputError(f"{url!r}: cannot be opened: {scrubbed(str(error))}") from error
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


def _is_link(kind: type) -> bool:
    """True for archives and caches, which belong in front of the `::` of a chain."""
    from fsspec.archive import AbstractArchiveFileSystem
    from fsspec.implementations.cached import CachingFileSystem

    return issubclass(kind, AbstractArchiveFileSystem | CachingFileSystem)


def _parse(kind: Any, url: str) -> tuple[str, dict[str, Any]]:
    """Split a URL into its path and the options that it carries."""
    return str(kind._strip_protocol(url)), kind._get_kwargs_from_urls(url)  # noqa: SLF001 (fsspec's own interface)


class FsspecStore(Store):
    """A filesystem of fsspec, of which threads have an instance each unless they may share one; processes always."""

    def __init__(self, fs: Any) -> None:
        from fsspec.utils import tokenize

        self._kind = type(fs)
        self._options = fs.storage_options
        self._key = (self._kind, tokenize(**self._options))
        self._of_thread = threading.local()
        self._of_thread.opened = os.getpid(), fs

    @property
    def fs(self) -> Any:
        """The instance of this thread and process."""
        process, fs = getattr(self._of_thread, "opened", (0, None))
        if process != os.getpid():
            with _connecting:
                fs = self._kind(**self._options)
            self._of_thread.opened = os.getpid(), fs
        return fs

    def __eq__(self, other: object) -> bool:
        """True for the same class with the same settings."""
        return isinstance(other, FsspecStore) and self._key == other._key

    def __hash__(self) -> int:
        """Return the hash of class and settings."""
        return hash(self._key)

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
        """Describe everything in a directory, or a file itself, which some filesystems refuse to list."""
        self.fs.invalidate_cache(path)
        try:
            entries = [_entry(each) for each in self.fs.ls(path, detail=True)]
        except OSError:
            own = self.stat(path)
            if own.kind == DIRECTORY:
                raise
            return [own]
        found = [entry for entry in entries if entry.path != path or entry.kind == FILE]
        if not found and (own := self.stat(path)).kind == FILE:
            return [own]
        return found

    def open(self, path: str, version: str = "") -> Reader:
        """Open a file, whatever its version."""
        found = self.stat(path)
        if found.kind == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _Reader(self, found)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a file."""
        return bytes(self.fs.cat_file(path, start=0, end=max_bytes))

    def put(self, path: str, data: bytes) -> str:
        """Write a small file."""
        if self.renames_files:
            return super().put(path, data)
        self.fs.pipe_file(path, data)
        return ""

    def create(self, path: str, buffers: UploadBuffers) -> Output:
        """Begin to write a file; missing directories are created."""
        return _Renamed(self.fs, path) if self.renames_files else _Output(self.fs, path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file, through this process where the filesystem cannot."""
        if _has_own("cp_file", self._kind):
            self.fs.cp_file(source, target)
        else:
            super().copy(source, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.fs.rm_file(path)

    def reason_of(self, error: Exception, path: str) -> Reason | None:
        """Explain an error of the operating system, or of the package behind the filesystem."""
        if isinstance(error, EOFError):  # paramiko's word for it
            return Reason("the connection was closed", transient=True)
        if isinstance(error, NotImplementedError):
            return Reason(f"its filesystem cannot do that: {scrubbed(str(error))}".rstrip(": "))
        if type(error) is RuntimeError:  # webhdfs's word for refusals by the server
            return Reason(scrubbed(str(error)))
        package = type(error).__module__.partition(".")[0]
        if not isinstance(error, OSError) and package not in ("builtins", "reshard"):
            return Reason(scrubbed(f"{type(error).__name__}: {error}"), transient=package == "paramiko")
        return reason_of_system(error)

    @property
    def renames_files(self) -> bool:
        """True if a file is written in place, and can be renamed: it gets its name when it is whole."""
        return _has_own("mv", self._kind)


class _Reader(RangeReader):
    def __init__(self, store: FsspecStore, found: Entry) -> None:
        super().__init__(found.size_bytes, found.file_version)
        self._store = store
        self._path = found.path

    def pieces(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Yield the bytes of a range at once."""
        yield self._store.fs.cat_file(self._path, start=offset, end=offset + length)


class _Output:
    """A file that appears when it is closed, as objects do, or has its name at once, and loses it when discarded."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path
        self._size_bytes = 0
        try:
            self._file = fs.open(path, "wb")
        except FileNotFoundError:
            fs.makedirs(posixpath.dirname(path), exist_ok=True)
            self._file = fs.open(path, "wb")

    def write(self, buffer: Buffer) -> None:
        self._file.write(buffer)
        self._size_bytes += memoryview(buffer).nbytes

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


class _Renamed(_Output):
    """A file that is written under a temporary name beside its own."""

    def __init__(self, fs: Any, path: str) -> None:
        folder, name = posixpath.split(path)
        super().__init__(fs, posixpath.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.tmp"))
        self._final = path

    def finish(self) -> None:
        super().finish()
        self._fs.invalidate_cache()
        size_bytes = self._fs.info(self._path)["size"]
        if size_bytes != self._size_bytes:
            raise ConnectionError(f"only {size_bytes} of {self._size_bytes} bytes arrived")
        try:
            self._rename()
        except Exception:
            # not every storage replaces a file by renaming; but the answer may have been lost, and that be the new one
            if not (self._fs.exists(self._path) and self._fs.exists(self._final)):
                raise
            self._fs.rm_file(self._final)
            self._rename()

    def _rename(self) -> None:
        self._fs.mv(self._path, self._final)
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.info(self._path)
            raise FileExistsError(errno.EEXIST, "the storage did not rename it", self._final)  # nor did it say so

    def discard(self) -> None:
        with suppress(OSError):  # its connection may have ended
            self._file.close()
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path)


def _has_own(method: str, kind: Any) -> bool:
    """True if a filesystem has a method of its own, and not one made of other methods, or missing."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    if issubclass(kind, AsyncFileSystem) and hasattr(AsyncFileSystem, f"_{method}"):
        return getattr(kind, f"_{method}") is not getattr(AsyncFileSystem, f"_{method}")
    return getattr(kind, method) is not getattr(AbstractFileSystem, method)


def _entry(info: Mapping[str, Any]) -> Entry:
    kind = {"file": FILE, "directory": DIRECTORY}.get(info["type"], OTHER)
    size_bytes = int(info.get("size") or 0)
    path = str(info["name"])
    if path.endswith("/") and len(path) > 1:
        path, kind = path.rstrip("/"), kind if size_bytes else DIRECTORY
    version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name)), "")
    moment = next((_moment(info[name]) for name in _TIMES if info.get(name)), None)
    changed = moment.timestamp() if isinstance(moment, datetime) else None
    is_link = bool(info.get("islink")) or info["type"] == "link"
    return Entry(path, kind, size_bytes, version or str(moment or ""), changed, is_link)


def _moment(found: Any) -> Any:
    """Return a time in one form: listings and looks may have it in two. As it is, if it is none that programs know."""
    try:
        if isinstance(found, str):
            found = datetime.fromisoformat(found)
        elif isinstance(found, int | float):
            found = datetime.fromtimestamp(found / 1000 if found > _MILLISECONDS_SINCE else found, UTC)
    except (ValueError, OverflowError, OSError):
        return found
    return found
