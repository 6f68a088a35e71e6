"""Reads files at offsets, from many threads; small files whole."""

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count
from typing import Protocol

from reshard.core.errors import CatalogError, CheckpointError, StorageError, TargetError
from reshard.core.runtime.local_files import is_irregular, open_regular
from reshard.core.runtime.metadata import check_metadata, metadata_limit_bytes
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.file_versions import difference_text, local_version, parse_object_version, remote_version
from reshard.core.storage.joined import JoinedFile, parts_of
from reshard.core.storage.listing import file_info
from reshard.core.storage.object_ranges import ChangedObjectError, RefusedRequestError, Scatter, give_up, object_ranges
from reshard.core.storage.object_requests import asked, object_beginning
from reshard.core.storage.transfers import at_once, requested
from reshard.core.storage.uploads import takes_parts
from reshard.core.storage.urls import Location


class SourceFile(Protocol):
    """A file open for reading at any offset; safe for use by many threads."""

    location: Location
    size_bytes: int
    version: str
    """Differs whenever the content does; see `reshard.core.storage.file_versions`."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from the bytes at `offset`.

        Raises:
            CheckpointError: the file ends before the buffer is full.
            StorageError: the file cannot be read.
        """

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each range (offset, length); a remote file's ranges are requested concurrently.

        Raises:
            CheckpointError: the file ends before a range does.
            StorageError: the file cannot be read.
        """

    def close(self) -> None:
        """Close the file."""


def read_bytes(file: SourceFile, offset: int, length: int) -> bytes:
    """Read `length` bytes at `offset`; for small reads, because it allocates them."""
    [data] = file.read_many([(offset, length)])
    return data


def read_parts(file: SourceFile, offset: int, parts: Sequence[memoryview]) -> bool:
    """Fill `parts`, one after another, from the bytes at `offset` of an object, which are copied only once.

    Returns False, and reads nothing, if the file is not a plain object: decrypting or checking contents takes all at
    once.

    Raises:
        CheckpointError: the file ends before the parts are full.
        StorageError: the file cannot be read.
    """
    if not isinstance(file, _RemoteSource):
        return False
    file.read_parts(offset, parts)
    return True


def open_source(location: Location, version: str = "") -> SourceFile:
    """Open a file for reading at offsets; a location that names several files is read as one.

    The caller compares the file's version with the one that it expects. With that as `version`, an object that obstore
    reads is not asked for first: each answer shows its version, and reading another one fails.

    Raises:
        StorageError: the file does not exist or cannot be opened.
    """
    parts = parts_of(location)
    if parts:
        with ExitStack() as opened:
            files = [opened.enter_context(closing(open_source(part))) for part in parts]
            opened.pop_all()
            return JoinedFile(location, files)
    with mapped_errors(location, "read it"):
        if location.is_local:
            return _LocalSource(location)
        return _RemoteSource(location, version)


def is_proven(file: SourceFile) -> bool:
    """True if each answer to a read so far showed that the file had its version, so that none need be looked for."""
    return isinstance(file, _RemoteSource) and file.is_proven


def read_version(location: Location) -> str:
    """Return the version of a file.

    Raises:
        StorageError: the file does not exist or cannot be opened.
    """
    with closing(open_source(location)) as file:
        return file.version


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
    def __init__(self, location: Location, version: str) -> None:
        self.location = location
        known = parse_object_version(version) if takes_parts(location) and object_ranges(location.fs) else None
        self._is_expected = known is not None
        """The version is what is expected, and no look has found it."""
        if known is not None:
            self.version = version
            self.size_bytes, self._etag = known
        else:
            info = file_info(location, "read it")
            if info["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.size_bytes = int(info["size"])
            self.version = remote_version(info)
            self._etag = str(info.get("ETag") or "")
        self.is_proven = bool(self._etag)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.read_parts(offset, [buffer])

    def read_parts(self, offset: int, parts: Sequence[memoryview]) -> None:
        """Fill `parts`, one after another, from the bytes at `offset`, by one request."""
        length = sum(map(len, parts))
        if offset + length > self.size_bytes:
            raise _ended_early(self.location, self.size_bytes)
        if not length:  # HTTP has no empty ranges
            return
        attempts = count()

        def ask() -> None:
            # s3fs repeats what obstore could not read: it explains failures
            if next(attempts) or not self._read_by_obstore(offset, parts):
                self._read_by_fsspec(offset, parts)

        requested(self.location, f"read {length} bytes at {offset}", ask)

    def _read_by_obstore(self, offset: int, parts: Sequence[memoryview]) -> bool:
        """Fill `parts`; False if fsspec has to."""
        location = self.location
        reader = object_ranges(location.fs) if takes_parts(location) else None
        if reader is None:
            return False
        bucket, key, _ = location.fs.split_path(location.path)
        try:
            reader.read(bucket, key, offset, parts, self._etag)
        except RefusedRequestError:
            self._read_by_fsspec(offset, parts)
            give_up(location.fs)
        except ChangedObjectError:
            self._look()
            self._read_by_fsspec(offset, parts)
            give_up(location.fs)  # the server takes no conditions, or shows no versions
        return True

    def _look(self) -> None:
        """Check that the object still has its version."""
        found = remote_version(file_info(self.location))
        if found != self.version:
            raise CatalogError(
                f"{self.location} changed while it was being read ({difference_text(self.version, found)}). Retry "
                "when nothing writes to it"
            )
        self._is_expected = False

    def _read_by_fsspec(self, offset: int, parts: Sequence[memoryview]) -> None:
        self.is_proven = False
        if self._is_expected:
            self._look()
        length = sum(map(len, parts))
        data = self.location.fs.cat_file(self.location.path, start=offset, end=offset + length)
        if len(data) != length:
            raise ConnectionError(f"wrong length: got {len(data)} of {length} bytes")
        Scatter(parts).write(memoryview(data))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        # a single one in this thread, which may itself belong to the pool of requests
        return [self._read(ranges[0])] if len(ranges) == 1 else list(at_once(self._read, ranges))

    def _read(self, range_: tuple[int, int]) -> bytes:
        offset, length = range_
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def close(self) -> None:
        pass


def _ended_early(location: Location, offset: int) -> CheckpointError:
    return CheckpointError(f"{location}: ends at byte {offset}, earlier than it should: truncated or changed")


def read_small_file(location: Location, limit_bytes: int) -> bytes:
    """Read a small file whole.

    Raises:
        StorageError: the file cannot be read.
        CheckpointError: the file is larger than `limit_bytes`.
        LimitError: the file would take too much memory.
    """
    if takes_parts(location):
        return _read_small_object(location, limit_bytes)
    with closing(open_source(location)) as file:
        if file.size_bytes > limit_bytes:
            raise _too_large(location, limit_bytes)
        check_metadata(file.size_bytes, location)
        return read_bytes(file, 0, file.size_bytes)


def read_own_file(location: Location, limit_bytes: int) -> bytes:
    """Read a small file that a conversion wrote, such as a record or a manifest.

    Raises:
        TargetError: the file is larger than `limit_bytes`, or not a regular file: it was changed since.
        StorageError: the file does not exist, or cannot be read.
    """
    try:
        return read_small_file(location, limit_bytes)
    except CheckpointError as error:
        raise TargetError(error.marked) from error
    except StorageError as error:
        if not is_irregular(error.__cause__):
            raise
        raise TargetError(error.marked) from error


def _read_small_object(location: Location, limit_bytes: int) -> bytes:
    """Read with a single request: the size need not be known, and HTTP detects truncated answers."""
    max_bytes = min(limit_bytes, metadata_limit_bytes())
    by_obstore = partial(object_beginning, location, max_bytes=max_bytes + 1)
    try:
        data = asked(location, "read it", by_obstore, lambda: _beginning(location, max_bytes + 1))
    except StorageError as error:
        # an empty object has no ranges
        if getattr(error.__cause__, "errno", None) == errno.EINVAL and file_info(location)["size"] == 0:
            return b""
        raise
    if len(data) > limit_bytes:
        raise _too_large(location, limit_bytes)
    check_metadata(len(data), location)
    return data


def _beginning(location: Location, max_bytes: int) -> bytes:
    return bytes(location.fs.cat_file(location.path, start=0, end=max_bytes))


def _too_large(location: Location, limit_bytes: int) -> CheckpointError:
    return CheckpointError(f"{location}: has more than {limit_bytes} bytes, the limit for such a file")
