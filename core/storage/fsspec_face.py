"""Our object stores as filesystems of fsspec, for other programs: `obs://` in pandas, `fsspec.open`, and the like.

obstore has such a filesystem of its own, which does not serve: it names files without their bucket, reads a range only
if both of its ends are given, knows no options of ours, and hangs in forked processes. What is asked of this one, a
storage of ours does.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from reshard.core.errors import StorageError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.store import DIRECTORY, ChangedFileError, Entry, Output
from reshard.core.storage.stores import object_store
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location

Answer = TypeVar("Answer")

_OF_FSSPEC = ("asynchronous", "use_listings_cache", "listings_expiry_time", "max_paths")
"""Options of all its filesystems, which have no meaning here: nothing is kept of listings."""


class OBSFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Huawei's Object Storage Service; its options are those of storage options for `obs://`."""

    protocol = "obs"
    root_marker = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        own = {name: value for name, value in options.items() if name not in _OF_FSSPEC}
        self.store = object_store(self.protocol, own)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe an object, or a prefix of objects."""
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        return _info(self.asked(path, "look for it", lambda: self.store.stat(path)))

    def exists(self, path: str, **_: Any) -> bool:
        """True if something is there; an error, unlike fsspec's own, if the storage does not say."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List what is right below a prefix."""
        path = self._strip_protocol(path)
        if not path:
            raise NotImplementedError("buckets cannot be listed: name one")
        found = self.asked(path, "list it", lambda: self.store.list(path))
        if not found:
            self.info(path)
        infos = sorted(map(_info, found), key=lambda info: str(info["name"]))
        return infos if detail else [info["name"] for info in infos]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """List all objects below a prefix, or the object itself."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, detail=detail, **options)
        path = self._strip_protocol(path)
        found = {each.path: _info(each) for each in self.asked(path, "list it", lambda: self.store.find(path))}
        if not found and self.isfile(path):
            found = {path: self.info(path)}
        return found if detail else list(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Read an object, or a part of it; `start` and `end` may be negative, as in slices."""
        path = self._strip_protocol(path)
        info = self.info(path)
        first, last = slice(start, end).indices(info["size"])[:2]
        return self.read_range(info, first, last)

    def read_range(self, info: Mapping[str, Any], start: int, end: int) -> bytes:
        """Read the bytes from `start` to before `end` of an object that is still as described."""
        path, data = info["name"], bytearray(max(0, end - start))

        def read() -> None:
            reader = self.store.open(path, f"{info['size']}-{info.get('ETag', '')}")
            try:
                reader.read_into(start, [memoryview(data)])
            except ChangedFileError as error:
                raise OSError("it changed while it was being read") from error

        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if data:
            self.asked(path, "read it", read)
        return bytes(data)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object within the storage."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self.asked(target, f"copy {source} to it", lambda: self.store.copy(source, target))

    def rm_file(self, path: str) -> None:
        """Remove an object."""
        path = self._strip_protocol(path)
        self.asked(path, "remove it", lambda: self.store.remove(path))

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove objects; with `recursive` all below a prefix."""
        for each in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            if self.info(each)["type"] == "file":
                self.rm_file(each)

    def created(self, path: str) -> datetime:
        """Return the time of the last change: objects are replaced, never changed."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        """Return the time of the last change."""
        moment: datetime = self.info(path)["LastModified"]
        return moment

    def asked(self, path: str, action: str, work: Callable[[], Answer]) -> Answer:
        """Return the answer to a request, repeated after transient failures."""
        with _os_errors(path):
            return requested(Location(self.store, path), action, work)

    def once(self, path: str, action: str, work: Callable[[], Answer]) -> Answer:
        """Do a part of an upload, which cannot be repeated."""
        with _os_errors(path), mapped_errors(Location(self.store, path), action):
            return work()

    def _open(self, path: str, mode: str = "rb", block_size: int | str | None = None, **options: Any) -> "ObjectFile":
        if mode not in ("rb", "wb"):
            raise NotImplementedError(f"objects can be read and written, not opened as {mode!r}")
        return ObjectFile(self, path, mode, block_size or "default", **options)


class ObjectFile(AbstractBufferedFile):  # type: ignore[misc]
    """An object open for reading, or being written; it appears when it is closed, or never."""

    _output: Output | None = None

    def discard(self) -> None:
        """Abort writing."""
        self.closed = True  # closing would complete it
        if self._output:
            self._output.discard()

    def commit(self) -> None:
        """Let the object appear."""
        if self._output:
            self.fs.once(self.path, "complete it", self._output.finish)

    def _fetch_range(self, start: int, end: int) -> bytes:
        found: bytes = self.fs.read_range(self.details, start, end)
        return found

    def _initiate_upload(self) -> None:
        self._output = self.fs.once(self.path, "create it", lambda: self.fs.store.create(self.path, UploadBuffers()))

    def _upload_chunk(self, final: bool = False) -> bool:
        output = self._output
        assert output is not None
        self.fs.once(self.path, "write it", lambda: output.write(self.buffer.getvalue()))
        if final and self.autocommit:
            self.commit()
        return True


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raise our errors as OSErrors, which programs expect of fsspec."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise OSError(str(error)) from error


def _info(entry: Entry) -> dict[str, Any]:
    if entry.kind == DIRECTORY:
        return {"name": entry.path, "size": 0, "type": "directory"}
    changed = None if entry.changed is None else datetime.fromtimestamp(entry.changed, UTC)
    return {
        "name": entry.path,
        "size": entry.size_bytes,
        "type": "file",
        "ETag": entry.version,
        "LastModified": changed,
    }
