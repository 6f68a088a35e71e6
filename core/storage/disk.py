"""The local disk, and what is mounted like it.

Importing fsspec, with asyncio and ssl, takes as long as converting a small checkpoint.
"""

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import ClassVar

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.local_files import check_regular, open_regular
from reshard.core.storage.atomic_rename import (
    check_unlinked_parent,
    flush_to_disk,
    open_temporary,
    rename_into_place,
    unlink_if_exists,
)
from reshard.core.storage.store import DIRECTORY, FILE, OTHER, Buffer, Entry, Output, Reader, Reason, Store
from reshard.core.storage.system_errors import reason_of_system
from reshard.core.storage.write_guard import check_claim


class LocalDisk(Store):
    """The local disk. Files are flushed before they get their names, so that a name means complete content."""

    has_paths: ClassVar[bool] = True
    renames: ClassVar[bool] = True
    is_near: ClassVar[bool] = True

    def url(self, path: str) -> str:
        """Return the path."""
        return path

    def stat(self, path: str) -> Entry:
        """Describe a file or directory, following links."""
        status = os.lstat(path)
        is_link = stat.S_ISLNK(status.st_mode)
        return _entry(path, os.stat(path) if is_link else status, is_link)

    def list(self, path: str) -> Sequence[Entry]:
        """Describe everything in a directory, where links are not followed, or a file itself."""
        own = self.stat(path)
        return [*_listed(path)] if own.kind == DIRECTORY else [own]

    def open(self, path: str, version: str = "") -> Reader:
        """Open a regular file, whatever its version."""
        return _Reader(path)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a regular file."""
        with open(open_regular(path), "rb") as file:
            return file.read(min(max_bytes, os.fstat(file.fileno()).st_size))  # it reserves as much memory

    def create(self, path: str, buffers: UploadBuffers) -> Output:
        """Begin to write a file under a temporary name; missing directories are created."""
        return _Output(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a regular file: a device would be copied without end."""
        check_regular(source)
        temporary, locked = open_temporary(target)
        with locked:
            try:
                shutil.copyfile(source, temporary)
                flush_to_disk(temporary)
                check_claim()
                rename_into_place(temporary, target)
            except BaseException:
                unlink_if_exists(temporary)
                raise

    def remove(self, path: str) -> None:
        """Remove a file, a link itself, or an empty directory; nothing to which a link leads."""
        check_unlinked_parent(path)
        try:
            os.unlink(path)
        except IsADirectoryError:
            os.rmdir(path)

    def restrict(self, path: str, mode: int) -> None:
        """Give a file this mode."""
        os.chmod(path, mode)

    def reason_of(self, error: Exception, path: str) -> Reason | None:
        """Explain an OSError."""
        return reason_of_system(error)


LOCAL_DISK = LocalDisk()


class _Reader:
    is_proven = False

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = open_regular(path)
        status = os.fstat(self._descriptor)
        self.size_bytes = status.st_size
        self.version = _entry(path, status, is_link=False).file_version

    def read_into(self, offset: int, parts: Sequence[memoryview]) -> int:
        count = 0
        for part in parts:
            while part:
                read = os.preadv(self._descriptor, [part], offset + count)
                if read == 0:
                    return count
                part = part[read:]
                count += read
        return count

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


class _Output:
    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary, self._file = open_temporary(path)

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        while view:
            view = view[self._file.write(view) :]

    def finish(self) -> None:
        os.fsync(self._file.fileno())
        lock = os.dup(self._file.fileno())  # until it is renamed, or it would be taken for abandoned
        try:
            self._file.close()  # some network file systems report only now that writing failed
            check_claim()  # flushing may have taken long
            rename_into_place(self._temporary, self._path)
        finally:
            os.close(lock)

    def discard(self) -> None:
        try:
            self._file.close()
        finally:
            unlink_if_exists(self._temporary)


def _listed(path: str) -> Iterator[Entry]:
    with os.scandir(path) as listing:
        for each in listing:
            with suppress(FileNotFoundError):  # removed meanwhile
                yield _entry(each.path, each.stat(follow_symlinks=False), each.is_symlink())


def _entry(path: str, status: os.stat_result, is_link: bool) -> Entry:
    kind = {stat.S_IFDIR: DIRECTORY, stat.S_IFREG: FILE}.get(stat.S_IFMT(status.st_mode), OTHER)
    # no program can set the change time, so it reveals a file that was rewritten and given its old modification time
    version = f"{status.st_mtime_ns}-c{status.st_ctime_ns}"
    return Entry(path, kind, status.st_size, version, status.st_mtime, is_link, status.st_ctime)
