"""Writes files front to back; they appear under their names only when they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from reshard.core.errors import StorageError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.atomic_rename import open_temporary, rename_into_place, unlink_if_exists
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.transfers import requested
from reshard.core.storage.uploads import Buffer, Upload, takes_parts
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim


class OutputFile(Protocol):
    """A file being written front to back."""

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`."""

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        """Replace bytes near the beginning of the file; see `takes_rewriting`.

        For an object store it must be announced by `UploadBuffers.keeps_first`.
        """


@contextmanager
def write_file(location: Location, upload: UploadBuffers | None = None) -> Iterator[OutputFile]:
    """Write a file that appears under its name only if the block succeeds; otherwise nothing is left of it.

    Storages that write in place (no object store does) show the name at once, and lose it again if the block fails.
    Missing directories are created. Local files are flushed to disk before they get their name, so that a name means
    complete content even after a crash of the machine. `upload` sets the buffers for object stores.

    Raises:
        StorageError: the file cannot be written.
    """
    check_claim()
    writer = _new_output(location, upload or UploadBuffers())
    try:
        yield writer
        check_claim()
        writer.finish()
    except BaseException:
        discard(writer, location)
        raise


def discard(output: "_LocalOutput | Upload | _RemoteOutput", location: Location) -> None:
    """Discard an unfinished file after a failure; if that fails as well, only note it: the first failure is raised."""
    try:
        output.discard()
    except StorageError as error:
        current_progress().note(f"an unfinished file for {location} could not be removed: {error}")


def write_bytes(location: Location, data: bytes) -> None:
    """Write a small file whole; see `write_file`."""
    if not location.is_local and not takes_parts(location):
        check_claim()
        requested(location, f"write {len(data)} bytes", lambda: location.fs.pipe_file(location.path, data))
        return
    with write_file(location) as file:
        file.write(data)


class _LocalOutput:
    def __init__(self, location: Location) -> None:
        self._location = location
        with mapped_errors(location, "create it"):
            self._temporary, self._file = open_temporary(location)

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
            lock = os.dup(self._file.fileno())  # until it is renamed, or it would be taken for abandoned
            try:
                self._file.close()  # some network file systems report only now that writing failed
                check_claim()  # flushing may have taken long
                rename_into_place(self._temporary, self._location.path)
            finally:
                os.close(lock)

    def discard(self) -> None:
        with mapped_errors(self._location, "give it up"):
            try:
                self._file.close()
            finally:
                unlink_if_exists(self._temporary)


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
        from fsspec.spec import AbstractBufferedFile

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
    """True if the beginning of a file being written at a location can be changed."""
    return location.is_local or takes_parts(location)
