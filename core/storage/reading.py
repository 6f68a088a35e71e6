"""Reads files at offsets, from many threads; small files whole."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Protocol

from reshard.core.errors import CatalogError, CheckpointError, StorageError, TargetError
from reshard.core.runtime.bandwidth import before_receiving
from reshard.core.runtime.local_files import is_irregular
from reshard.core.runtime.metadata import check_metadata, metadata_limit_bytes
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.file_versions import difference_text
from reshard.core.storage.joined import JoinedFile, parts_of
from reshard.core.storage.listing import stat
from reshard.core.storage.read_log import note_read
from reshard.core.storage.store import ChangedFileError
from reshard.core.storage.transfers import at_once, requested
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
    """Fill `parts`, one after another, from the bytes at `offset` of a file, which are copied only once.

    Returns False, and reads nothing, if the file is not a plain one: decrypting or checking contents takes all at once.

    Raises:
        CheckpointError: the file ends before the parts are full.
        StorageError: the file cannot be read.
    """
    if not isinstance(file, _Source) or file.location.store.is_near:
        return False
    file.read_parts(offset, parts)
    return True


def open_source(location: Location, version: str = "") -> SourceFile:
    """Open a file for reading at offsets; a location that names several files is read as one.

    The caller compares the file's version with the one that it expects. With that as `version`, an object is not asked
    for first: each answer shows its version, and reading another one fails.

    Raises:
        StorageError: the file does not exist or cannot be opened.
    """
    parts = parts_of(location)
    if parts:
        with ExitStack() as opened:
            files = [opened.enter_context(closing(open_source(part))) for part in parts]
            opened.pop_all()
            return JoinedFile(location, files)
    return _Source(location, version)


def is_proven(file: SourceFile) -> bool:
    """True if each answer to a read so far showed that the file had its version, so that none need be looked for."""
    return isinstance(file, _Source) and file.is_proven


def read_version(location: Location) -> str:
    """Return the version of a file.

    Raises:
        StorageError: the file does not exist or cannot be opened.
    """
    with closing(open_source(location)) as file:
        return file.version


class _Source:
    """A file of any storage; nothing is won by asking a near one for many ranges at once, or for one again."""

    def __init__(self, location: Location, version: str) -> None:
        self.location = location
        if location.store.is_near:
            with mapped_errors(location, "read it"):
                self._reader = location.store.open(location.path)
        else:
            self._reader = requested(location, "read it", lambda: location.store.open(location.path, version))
        self.size_bytes, self.version = self._reader.size_bytes, self._reader.version

    @property
    def is_proven(self) -> bool:
        return self._reader.is_proven

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.read_parts(offset, [buffer])

    def read_parts(self, offset: int, parts: Sequence[memoryview]) -> None:
        """Fill `parts`, one after another, from the bytes at `offset`."""
        length = sum(map(len, parts))
        if offset + length > self.size_bytes:
            raise _ended_early(self.location, self.size_bytes)
        if not length:  # HTTP has no empty ranges
            return
        action = f"read {length} bytes at {offset}"
        if self.location.store.is_near:
            with mapped_errors(self.location, action):
                count = self._reader.read_into(offset, parts)
        else:
            count = requested(self.location, action, lambda: self._read(offset, parts, action))
        if count < length:
            raise _ended_early(self.location, offset + count)

    def _read(self, offset: int, parts: Sequence[memoryview], action: str) -> int:
        before_receiving(sum(map(len, parts)))
        try:
            return self._reader.read_into(offset, parts)
        except ChangedFileError as error:
            found = stat(self.location).file_version
            if found == self.version:
                raise StorageError(
                    f"{self.location}: cannot {action}: the server denies that it has the version that it shows"
                ) from error
            raise CatalogError(
                f"{self.location} changed while it was being read ({difference_text(self.version, found)}). Retry "
                "when nothing writes to it"
            ) from error

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        # a single one in this thread, which may itself belong to the pool of requests
        if len(ranges) == 1 or self.location.store.is_near:
            return [self._read_range(range_) for range_ in ranges]
        return list(at_once(self._read_range, ranges))

    def _read_range(self, range_: tuple[int, int]) -> bytes:
        offset, length = range_
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def close(self) -> None:
        with mapped_errors(self.location, "close it"):
            self._reader.close()


def _ended_early(location: Location, offset: int) -> CheckpointError:
    return CheckpointError(f"{location}: ends at byte {offset}, earlier than it should: truncated or changed")


def read_small_file(location: Location, limit_bytes: int) -> bytes:
    """Read a small file whole.

    Raises:
        StorageError: the file cannot be read.
        CheckpointError: the file is larger than `limit_bytes`.
        LimitError: the file would take too much memory.
    """
    max_bytes = min(limit_bytes, metadata_limit_bytes()) + 1
    data = requested(location, "read it", lambda: location.store.read_beginning(location.path, max_bytes))
    if len(data) > limit_bytes:
        raise _too_large(location, limit_bytes)
    check_metadata(len(data), location)
    note_read(location, data)
    return data


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


def _too_large(location: Location, limit_bytes: int) -> CheckpointError:
    return CheckpointError(f"{location}: has more than {limit_bytes} bytes, the limit for such a file")
