"""Files: read at offsets by many threads, written front to back and visible only when whole."""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from fsspec.spec import AbstractBufferedFile

from reshard.core.errors import CheckpointError, StorageError, TargetError, UnusableStorageError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.local_files import check_regular, is_irregular, open_regular
from reshard.core.runtime.metadata import check_metadata, metadata_limit_bytes
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.file_versions import local_version, remote_version
from reshard.core.storage.joined import JoinedFile, parts_of
from reshard.core.storage.transfers import at_once, requested
from reshard.core.storage.uploads import Buffer, Upload, takes_parts
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim

Result = TypeVar("Result")

_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


class SourceFile(Protocol):
    """A file open for reading at any offset; safe for use by many threads."""

    location: Location
    size_bytes: int
    version: str
    """Changes whenever the content does; see `reshard.core.storage.file_versions`."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` from the bytes at `offset`.

        Raises:
            CheckpointError: the file ends before the buffer is full.
            StorageError: it cannot be read.
        """

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each range, given by its offset and its length; of a remote file all are asked for at once.

        Raises:
            CheckpointError: the file ends before one of them does.
            StorageError: it cannot be read.
        """

    def close(self) -> None:
        """Gives the file back."""


def read_bytes(file: SourceFile, offset: int, length: int) -> bytes:
    """`length` bytes of a file from `offset` on; for small reads, since it allocates them."""
    [data] = file.read_many([(offset, length)])
    return data


def open_source(location: Location) -> SourceFile:
    """Opens a file for reading at offsets; where a location stands for several, they are read as one.

    Raises:
        StorageError: it does not exist or cannot be opened.
    """
    parts = parts_of(location)
    if parts:
        return _open_joined(location, parts)
    with mapped_errors(location, "read it"):
        if location.is_local:
            return _LocalSource(location)
        return _RemoteSource(location)


def read_version(location: Location) -> str:
    """The version of a file.

    Raises:
        StorageError: it does not exist or cannot be opened.
    """
    file = open_source(location)
    file.close()
    return file.version


def _open_joined(location: Location, parts: Sequence[Location]) -> SourceFile:
    opened: list[SourceFile] = []
    try:
        opened.extend(map(open_source, parts))
    except BaseException:
        for file in opened:
            file.close()
        raise
    return JoinedFile(location, opened)


class _LocalSource:
    def __init__(self, location: Location) -> None:
        self.location = location
        self._descriptor = -1
        self._descriptor = open_regular(location.path)
        status = os.fstat(self._descriptor)
        self.size_bytes = status.st_size
        self.version = local_version(status)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        position = offset
        with mapped_errors(self.location, f"read {len(buffer)} bytes at {offset}"):
            while buffer:
                count = os.preadv(self._descriptor, [buffer], position)
                if count == 0:
                    raise _ended_early(self.location, position)
                buffer = buffer[count:]
                position += count

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._read(offset, length) for offset, length in ranges]

    def _read(self, offset: int, length: int) -> bytes:
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with mapped_errors(self.location, "close it"):
                os.close(descriptor)

    def __del__(self) -> None:
        with suppress(StorageError):
            self.close()


class _RemoteSource:
    def __init__(self, location: Location) -> None:
        self.location = location
        info = file_info(location, "read it")
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self.size_bytes = int(info["size"])
        self.version = remote_version(info)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self._read((offset, len(buffer)))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        # one of them in this thread: it may be one of those that make requests for others
        return [self._read(ranges[0])] if len(ranges) == 1 else list(at_once(self._read, ranges))

    def _read(self, range_: tuple[int, int]) -> bytes:
        offset, length = range_
        if offset + length > self.size_bytes:
            raise _ended_early(self.location, self.size_bytes)
        if not length:  # HTTP has no empty range
            return b""

        def ask() -> bytes:
            data = bytes(self.location.fs.cat_file(self.location.path, start=offset, end=offset + length))
            if len(data) != length:
                raise ConnectionError(f"{len(data)} bytes came")
            return data

        return requested(self.location, f"read {length} bytes at {offset}", ask)

    def close(self) -> None:
        pass


def _ended_early(location: Location, offset: int) -> CheckpointError:
    return CheckpointError(f"{location}: ends at byte {offset}, earlier than it should: truncated or changed")


class OutputFile(Protocol):
    """A file being written front to back."""

    def write(self, buffer: Buffer) -> None:
        """Appends all of `buffer`.

        Raises:
            StorageError: it cannot be written.
        """

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        """Puts `buffer` in the place of bytes that were written, near the beginning; see `takes_rewriting`.

        To an object store it has to be announced by `UploadBuffers.keeps_first`.

        Raises:
            StorageError: it cannot be written.
        """


@contextmanager
def write_file(location: Location, upload: UploadBuffers | None = None) -> Iterator[OutputFile]:
    """Writes a file that appears under its name only when the block ends well; else nothing is left of it.

    Storages that write in place (no object store does) show the name at once, and lose it again if the block fails.
    Directories on the way are made. Local files are flushed to the disk before they get their name, so that a name
    stands for content even after the machine went down. `upload` says how files are sent to an object store.

    Raises:
        StorageError: it cannot be written.
    """
    check_claim()
    writer = _new_output(location, upload or UploadBuffers())
    try:
        yield writer
        check_claim()
        writer.finish()
    except BaseException:
        try:
            writer.discard()
        except StorageError as error:
            # what failed first is raised; this is what else the user has to know
            current_progress().note(f"what was written of {location} is left there, unseen: {error}")
        raise


def file_info(location: Location, action: str = "look for it") -> dict[str, Any]:
    """What a storage says of a file or directory: `type`, `size` in bytes and more.

    Raises:
        StorageError: it does not exist, or cannot be looked for.
    """

    def look() -> dict[str, Any]:
        location.fs.invalidate_cache()
        return dict(location.fs.info(location.path))

    return requested(location, action, look)


def kind_of(location: Location) -> str | None:
    """What is there: `file`, `directory`, something else; None if nothing.

    Raises:
        StorageError: it cannot be told. (fsspec's own `exists` takes any failure for a no.)
    """
    return unless_missing(lambda: str(file_info(location)["type"]))


def exists(location: Location) -> bool:
    """Whether there is a file or directory.

    Raises:
        StorageError: it cannot be told.
    """
    return kind_of(location) is not None


def list_folder(location: Location, action: str = "list it") -> list[dict[str, Any]]:
    """What a storage says of each file and directory in a directory: `name` (a path), `type`, `size` and more.

    The empty objects by which object stores know directories count as these, and the directory's own as nothing.

    Raises:
        StorageError: it does not exist, or cannot be listed.
    """

    def look() -> list[dict[str, Any]]:
        location.fs.invalidate_cache(location.path)
        return list(location.fs.ls(location.path, detail=True))

    entries = (
        entry | {"type": "directory"} if _is_marker(entry) else entry for entry in requested(location, action, look)
    )
    return [entry for entry in entries if entry["name"] != f"{location.path}/"]


def find_files(location: Location, *, markers: bool = False) -> list[Location]:
    """All files below a directory; none if it does not exist.

    Args:
        markers: also the empty objects by which object stores know directories.

    Raises:
        StorageError: they cannot be listed.
    """

    def look() -> dict[str, dict[str, Any]]:
        location.fs.invalidate_cache(location.path)
        return dict(location.fs.find(location.path, detail=True))

    found = requested(location, "list the files in it", look)
    return [Location(location.fs, path) for path, entry in found.items() if markers or not _is_marker(entry)]


def _is_marker(entry: Mapping[str, Any]) -> bool:
    """Whether it is an object such as `models/`, which consoles make where one asks them for a directory."""
    return str(entry["name"]).endswith("/") and not entry.get("size")


def is_missing(error: StorageError) -> bool:
    """Whether an error means that a file or directory does not exist; a missing bucket does not count."""
    return not isinstance(error, UnusableStorageError) and isinstance(
        error.__cause__, FileNotFoundError | NotADirectoryError
    )


def has_no_file(error: StorageError) -> bool:
    """Whether an error means that a location has no regular file: nothing, a directory, a pipe or the like."""
    return is_missing(error) or is_irregular(error.__cause__)


def unless_missing(work: Callable[[], Result]) -> Result | None:
    """The result of `work`; None if what it is about is not there.

    Raises:
        StorageError: it failed for another reason.
    """
    try:
        return work()
    except StorageError as error:
        if is_missing(error):
            return None
        raise


def write_bytes(location: Location, data: bytes) -> None:
    """Writes a small file whole; see `write_file`."""
    if not location.is_local and not takes_parts(location):
        check_claim()
        requested(location, f"write {len(data)} bytes", lambda: location.fs.pipe_file(location.path, data))
        return
    with write_file(location) as file:
        file.write(data)


def read_small_file(location: Location, limit_bytes: int) -> bytes:
    """The whole of a file that is known to be small.

    Raises:
        StorageError: it cannot be read.
        CheckpointError: it is larger than `limit_bytes`.
        LimitError: it would take too much memory.
    """
    if takes_parts(location):
        return _read_small_object(location, limit_bytes)
    file = open_source(location)
    try:
        if file.size_bytes > limit_bytes:
            raise _too_large(location, limit_bytes)
        check_metadata(file.size_bytes, location)
        return read_bytes(file, 0, file.size_bytes)
    finally:
        file.close()


def read_own_file(location: Location, limit_bytes: int) -> bytes:
    """The content of a small file that a conversion wrote, such as a record or a manifest.

    Raises:
        TargetError: the file is larger than `limit_bytes`, or not a regular file: it was changed since.
        StorageError: the file does not exist, or cannot be read.
    """
    try:
        return read_small_file(location, limit_bytes)
    except CheckpointError as error:
        raise TargetError(str(error)) from error
    except StorageError as error:
        if not is_irregular(error.__cause__):
            raise
        raise TargetError(str(error)) from error


def _read_small_object(location: Location, limit_bytes: int) -> bytes:
    """One request; others need one for the size as well. HTTP tells if less came than was sent."""
    most_bytes = min(limit_bytes, metadata_limit_bytes())
    read = partial(location.fs.cat_file, location.path, start=0, end=most_bytes + 1)
    try:
        data = bytes(requested(location, "read it", read))
    except StorageError as error:
        # there is no range in an empty object
        if getattr(error.__cause__, "errno", None) == errno.EINVAL and file_info(location)["size"] == 0:
            return b""
        raise
    if len(data) > limit_bytes:
        raise _too_large(location, limit_bytes)
    check_metadata(len(data), location)
    return data


def _too_large(location: Location, limit_bytes: int) -> CheckpointError:
    return CheckpointError(f"{location}: has more than {limit_bytes} bytes, more than such a file may have")


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

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        with mapped_errors(self._location, f"write {len(view)} bytes at {offset}"):
            while view:
                count = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[count:], offset + count

    def finish(self) -> None:
        with mapped_errors(self._location, "complete it"):
            os.fsync(self._file.fileno())
            self._file.close()
            check_claim()  # flushing may have taken long
            _give_name(self._temporary, self._location.path)

    def discard(self) -> None:
        with mapped_errors(self._location, "give it up"):
            try:
                self._file.close()
            finally:
                _unlink_if_there(self._temporary)


class _RemoteOutput:
    """A file on a storage that is neither local nor of the S3 kind."""

    def __init__(self, location: Location) -> None:
        self._location = location
        with mapped_errors(location, "create it"):
            self._file = location.fs.open(location.path, "wb")

    def write(self, buffer: Buffer) -> None:
        with mapped_errors(self._location, f"write {len(buffer)} bytes"):
            self._file.write(buffer)

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        raise StorageError(f"{self._location}: cannot write {len(buffer)} bytes at {offset}: it is only appended to")

    def finish(self) -> None:
        with mapped_errors(self._location, "complete it"):
            self._file.close()

    def discard(self) -> None:
        with mapped_errors(self._location, "give it up"):
            if isinstance(self._file, AbstractBufferedFile):
                # closing would complete the object: drop what is pending instead
                self._file.closed = True
                self._file.discard()
            else:
                self._file.close()
                self._location.fs.rm_file(self._location.path)


def _new_output(location: Location, upload: UploadBuffers) -> _LocalOutput | Upload | _RemoteOutput:
    if location.is_local:
        return _LocalOutput(location)
    return Upload(location, upload) if takes_parts(location) else _RemoteOutput(location)


def takes_rewriting(location: Location) -> bool:
    """Whether the beginning of a file that is being written there can still be changed."""
    return location.is_local or takes_parts(location)


def remove_file(location: Location) -> None:
    """Removes a file, if it exists; or a local link itself, or an empty local directory in the file's place.

    Raises:
        StorageError: removing failed, or a link leads to the file's local directory.
    """

    def remove() -> None:
        with suppress(FileNotFoundError):
            if location.is_local:
                _remove_local(location.path)
            else:
                location.fs.rm_file(location.path)

    requested(location, "remove it", remove)


def remove_files(locations: Iterable[Location]) -> None:
    """Removes files, those that exist; many at once."""
    for _ in at_once(remove_file, locations):
        pass


def copy_file(source: Location, target: Location) -> None:
    """Copies a file within one storage, by the storage itself; the copy appears only when it is whole.

    Raises:
        StorageError: it cannot be copied.
    """
    action = f"copy {source} to it"
    if not target.is_local:
        check_claim()
        _copy_remote(source, target, action)
        return
    with mapped_errors(target, action):
        temporary = _temporary_path(target)
        check_regular(source.path)  # a device would be copied without end
        try:
            shutil.copyfile(source.path, _made(temporary))
            _flush(temporary)
            check_claim()
            _give_name(temporary, target.path)
        except BaseException:
            _unlink_if_there(temporary)
            raise


def _copy_remote(source: Location, target: Location, action: str) -> None:
    if not takes_parts(target):
        requested(target, action, lambda: target.fs.cp_file(source.path, target.path))
        return
    # s3fs would copy what is large part after part, from the first one on again if one fails, and leave them there
    upload = Upload(target, UploadBuffers())
    try:
        upload.copy(source, file_info(source, action)["size"], action)
    except BaseException:
        try:
            upload.discard()
        except StorageError as error:
            current_progress().note(f"what was copied to {target} is left there, unseen: {error}")
        raise


def is_temporary(name: str) -> bool:
    """Whether a local file has the name of one that is being written, or whose writer was killed."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def is_of_file_system(name: str) -> bool:
    """Whether a network file system gives such a name to files removed while open."""
    return name.startswith((".nfs", ".fuse_hidden"))


def _temporary_path(location: Location) -> str:
    # in the directory of the final name: rename must not cross file systems
    return os.path.join(os.path.dirname(location.path), f".{location.name}.{uuid.uuid4().hex[:8]}.tmp")


def _made(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _check_unlinked(path)
    return path


def _check_unlinked(path: str) -> None:
    """Makes sure that no link leads to a file's directory before writing or removing it: parsing resolved all links.

    Raises:
        OSError: a link leads to the directory.
    """
    directory = os.path.dirname(path)
    if (found := os.path.realpath(directory)) != directory:
        raise OSError(errno.ELOOP, f"a link leads from {directory} to {found}, and nothing is changed through links")


def _give_name(temporary: str, path: str) -> None:
    """Renames a finished file to its final path, replacing an empty directory if need be."""
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        with suppress(OSError):
            os.rmdir(path)
        os.replace(temporary, path)


def _remove_local(path: str) -> None:
    _check_unlinked(path)
    try:
        os.unlink(path)
    except IsADirectoryError:
        os.rmdir(path)


def _unlink_if_there(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
