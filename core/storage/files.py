"""Files: read at offsets by many threads, written front to back and visible only when whole."""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from fsspec.spec import AbstractBufferedFile

from core.errors import CheckpointError, StorageError, is_transient
from core.storage.urls import Location

Buffer = bytes | bytearray | memoryview

_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")

# base classes, by name because the packages need not be installed; botocore's are no OSErrors
_CLIENT_PACKAGES = ("botocore", "aiobotocore", "aiohttp")
_TRANSIENT_CLIENT_ERRORS = {
    "ConnectionError",
    "HTTPClientError",
    "IncompleteReadError",
    "FlexibleChecksumError",
    "ClientConnectionError",
    "ClientPayloadError",
}


class SourceFile(Protocol):
    """A file open for reading at any offset; safe for use by many threads."""

    location: Location
    size_bytes: int
    version: str
    """Changes whenever the content does: modification time and size, or the object's etag."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` from the bytes at `offset`.

        Raises:
            CheckpointError: the file ends before the buffer is full.
            StorageError: it cannot be read.
        """

    def close(self) -> None:
        """Gives the file back."""


def read_bytes(file: SourceFile, offset: int, length: int) -> bytes:
    """`length` bytes of a file from `offset` on; for small reads, since it allocates them."""
    buffer = bytearray(length)
    file.read_into(offset, memoryview(buffer))
    return bytes(buffer)


@contextmanager
def mapped_errors(location: Location, action: str) -> Iterator[None]:
    """Turns what a storage raises into a StorageError that names the URL and what was being done to it.

    `action` completes the sentence "cannot …".
    """
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(f"{location}: cannot {action}: no such file or directory") from error
    except PermissionError as error:
        raise StorageError(f"{location}: cannot {action}: permission denied") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise StorageError(f"{location}: cannot {action}: {reason}", transient=is_transient(error)) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in _CLIENT_PACKAGES:
            raise
        # missing credentials and wrong settings are no better the next time
        transient = any(base.__name__ in _TRANSIENT_CLIENT_ERRORS for base in type(error).__mro__)
        raise StorageError(f"{location}: cannot {action}: {error}", transient=transient) from error


def open_source(location: Location) -> SourceFile:
    """Opens a file for reading at offsets.

    Raises:
        StorageError: it does not exist or cannot be opened.
    """
    with mapped_errors(location, "read it"):
        if location.is_local:
            return _LocalSource(location)
        return _RemoteSource(location)


class _LocalSource:
    def __init__(self, location: Location) -> None:
        self.location = location
        self._file = location.fs.open(location.path, "rb")
        self._descriptor = self._file.fileno()
        status = os.fstat(self._descriptor)
        self.size_bytes = status.st_size
        self.version = _local_version(status)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        position = offset
        with mapped_errors(self.location, f"read {len(buffer)} bytes at {offset}"):
            while buffer:
                count = os.preadv(self._descriptor, [buffer], position)
                if count == 0:
                    raise _ended_early(self.location, position)
                buffer = buffer[count:]
                position += count

    def close(self) -> None:
        self._file.close()


class _RemoteSource:
    def __init__(self, location: Location) -> None:
        self.location = location
        info = location.fs.info(location.path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self.size_bytes = int(info["size"])
        self.version = _remote_version(info)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        length = len(buffer)
        if not length:  # HTTP has no empty range
            return
        with mapped_errors(self.location, f"read {length} bytes at {offset}"):
            data = self.location.fs.cat_file(self.location.path, start=offset, end=offset + length)
        if len(data) != length:
            raise _ended_early(self.location, offset + len(data))
        buffer[:] = data

    def close(self) -> None:
        pass


def _ended_early(location: Location, offset: int) -> CheckpointError:
    return CheckpointError(f"{location}: ends at byte {offset}, earlier than it should: truncated or changed")


def _local_version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _remote_version(info: dict[str, Any]) -> str:
    for key in ("ETag", "etag", "md5", "LastModified", "mtime", "created"):
        if info.get(key):
            return f"{info['size']}-{str(info[key]).strip(chr(34))}"
    return str(info["size"])


class OutputFile(Protocol):
    """A file being written front to back."""

    def write(self, buffer: Buffer) -> None:
        """Appends all of `buffer`.

        Raises:
            StorageError: it cannot be written.
        """


@contextmanager
def write_file(location: Location) -> Iterator[OutputFile]:
    """Writes a file that appears under its name only when the block ends well; else nothing is left of it.

    Storages that write in place (no object store does) show the name at once, and lose it again if the block fails.
    Directories on the way are made. Local files are flushed to the disk before they get their name, so that a name
    stands for content even after the machine went down.

    Raises:
        StorageError: it cannot be written.
    """
    writer = _LocalOutput(location) if location.is_local else _RemoteOutput(location)
    try:
        yield writer
        writer.finish()
    except BaseException:
        writer.discard()
        raise


def exists(location: Location) -> bool:
    """Whether there is a file or directory.

    Raises:
        StorageError: it cannot be told. (fsspec's own `exists` takes any failure for a no.)
    """
    with mapped_errors(location, "look for it"):
        location.fs.invalidate_cache()
        try:
            location.fs.info(location.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def write_bytes(location: Location, data: bytes) -> None:
    """Writes a small file whole; see `write_file`."""
    if not location.is_local:
        with mapped_errors(location, f"write {len(data)} bytes"):
            location.fs.pipe_file(location.path, data)
        return
    with write_file(location) as file:
        file.write(data)


def read_small_file(location: Location, limit_bytes: int) -> bytes:
    """The whole of a file that is known to be small.

    Raises:
        StorageError: it cannot be read.
        CheckpointError: it is larger than `limit_bytes`.
    """
    file = open_source(location)
    try:
        if file.size_bytes > limit_bytes:
            raise CheckpointError(f"{location}: has {file.size_bytes} bytes, more than such a file may have")
        return read_bytes(file, 0, file.size_bytes)
    finally:
        file.close()


class _LocalOutput:
    def __init__(self, location: Location) -> None:
        self._location = location
        self._temporary = _temporary_path(location)
        with mapped_errors(location, "create it"):
            self._file = open(_made(self._temporary), "xb", buffering=0)

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        with mapped_errors(self._location, f"write {len(view)} bytes"):
            while view:
                view = view[self._file.write(view) :]

    def finish(self) -> None:
        with mapped_errors(self._location, "complete it"):
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._location.path)

    def discard(self) -> None:
        self._file.close()
        _unlink_if_there(self._temporary)


class _RemoteOutput:
    def __init__(self, location: Location) -> None:
        self._location = location
        with mapped_errors(location, "create it"):
            self._file = location.fs.open(location.path, "wb")

    def write(self, buffer: Buffer) -> None:
        with mapped_errors(self._location, f"write {len(buffer)} bytes"):
            self._file.write(buffer)

    def finish(self) -> None:
        with mapped_errors(self._location, "complete it"):
            self._file.close()

    def discard(self) -> None:
        # what failed first is what the user has to know, not that cleaning up failed as well
        with suppress(Exception):
            if isinstance(self._file, AbstractBufferedFile):
                # closing would complete the object: drop what is pending instead
                self._file.closed = True
                self._file.discard()
            else:
                self._file.close()
                self._location.fs.rm_file(self._location.path)


def copy_file(source: Location, target: Location) -> None:
    """Copies a file within one storage, by the storage itself; the copy appears only when it is whole.

    Raises:
        StorageError: it cannot be copied.
    """
    with mapped_errors(target, f"copy {source} to it"):
        if target.is_local:
            temporary = _temporary_path(target)
            try:
                shutil.copyfile(source.path, _made(temporary))
                _flush(temporary)
                os.replace(temporary, target.path)
            except BaseException:
                _unlink_if_there(temporary)
                raise
        else:
            target.fs.cp_file(source.path, target.path)


def is_temporary(name: str) -> bool:
    """Whether a local file has the name of one that is being written, or whose writer was killed."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def _temporary_path(location: Location) -> str:
    # in the directory of the final name: rename must not cross file systems
    return os.path.join(os.path.dirname(location.path), f".{location.name}.{uuid.uuid4().hex[:8]}.tmp")


def _made(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def _unlink_if_there(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
