"""Local copies of a storage's files, `filecache::s3://bucket/dir` and `simplecache::…`: each file is fetched once.

A copy belongs to one version of a file, so one that was replaced is fetched again; fsspec's own caches go on reading
the old copy. `simplecache` removes its copies at the end of the process.
"""

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any, ClassVar

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.option_checks import check_kinds, check_known
from reshard.core.storage.read_only import ReadOnlyStore
from reshard.core.storage.store import (
    DIRECTORY,
    ChangedFileError,
    Entry,
    Reader,
    Reason,
    Store,
    completed,
    write_all_of,
)


class NoVersionError(OSError):
    """A storage does not say when a file changes."""


class FileCache(ReadOnlyStore):
    """A storage whose files are copied before they are read; all else is asked of the storage itself, `store`."""

    place: ClassVar[str] = "a storage behind a cache"

    def __init__(self, protocol: str, store: Store, directory: str) -> None:
        self._protocol = protocol
        self.store = store
        self._directory = directory
        self._fetching = threading.Lock()

    def url(self, path: str) -> str:
        """Format a path with the cache in front."""
        return f"{self._protocol}::{self.store.url(path)}"

    def stat(self, path: str) -> Entry:
        """Describe a file or directory of the storage."""
        return self.store.stat(path)

    def list(self, path: str) -> Sequence[Entry]:
        """Describe everything right in a directory of the storage."""
        return self.store.list(path)

    def find(self, path: str) -> Sequence[Entry]:
        """Describe all files below a directory of the storage."""
        return self.store.find(path)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a file of the storage."""
        return self.store.read_beginning(path, max_bytes)

    def open(self, path: str, version: str = "") -> Reader:
        """Open the copy of a file as it is now, and fetch it before if there is none."""
        found = self.store.stat(path)
        if found.kind == DIRECTORY:
            raise IsADirectoryError(path)
        if not found.version:
            raise NoVersionError("the storage does not say when a file changes: a copy of it might be out of date")
        key = f"{self.store.url(path)}\n{found.file_version}"
        copy = os.path.join(self._directory, hashlib.sha256(os.fsencode(key)).hexdigest())
        with self._fetching:
            if not os.path.exists(copy):
                self._fetch(found, copy)
        return _Reader(LOCAL_DISK.open(copy), found)

    def origin(self, path: str) -> tuple[Store, str]:
        """Return the place behind the cache."""
        return self.store.origin(path)

    def reason_of_reading(self, error: Exception, path: str) -> Reason | None:
        """Explain an error of the storage."""
        if isinstance(error, NoVersionError):
            return Reason(str(error))
        return self.store.reason_of(error, path)

    def _fetch(self, found: Entry, copy: str) -> None:
        with (
            closing(self.store.open(found.path, found.file_version)) as reader,
            completed(LOCAL_DISK.create(copy, UploadBuffers())) as output,
        ):
            write_all_of(reader, output)
            if {reader.version, self.store.stat(found.path).file_version} != {found.file_version}:
                raise ChangedFileError


class _Reader:
    is_proven = True

    def __init__(self, copy: Reader, found: Entry) -> None:
        self._copy = copy
        self.size_bytes, self.version = found.size_bytes, found.file_version
        self.read_into, self.close = copy.read_into, copy.close


def directory_for(protocol: str, options: Mapping[str, Any]) -> str:
    """Return the directory for copies.

    Raises:
        ValueError: an option is unknown, or of the wrong kind.
    """
    known = ("cache_storage",)
    check_known(options, known, protocol)
    check_kinds(options, str, "a directory's path")
    directory: str | None = options.get("cache_storage")
    if directory:
        return os.path.abspath(os.path.expanduser(directory))
    if protocol == "filecache":
        raise ValueError(
            'filecache: name the directory for its files in storage options, {"filecache": {"cache_storage": "…"}}, or '
            "use simplecache, whose files are removed at the end of the process"
        )
    return _temporary(os.getpid())


@cache
def _temporary(process: int) -> str:
    """Return a directory of this process, which is removed when it ends."""
    directory = tempfile.mkdtemp(prefix="reshard-")
    atexit.register(_remove, directory, process)
    return directory


def _remove(directory: str, process: int) -> None:
    if os.getpid() == process:  # not its forks
        shutil.rmtree(directory, ignore_errors=True)
