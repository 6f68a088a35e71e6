"""Writes files front to back; they appear under their names only when they are whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from reshard.core.errors import StorageError
from reshard.core.runtime.bandwidth import before_sending
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.store import Buffer, completed
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim


class OutputFile(Protocol):
    """A file being written front to back."""

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`."""


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
    with completed(_Output(location, upload or UploadBuffers())) as output:
        yield output
        check_claim()


def write_bytes(location: Location, data: bytes) -> None:
    """Write a small file whole.

    Raises:
        StorageError: the file cannot be written.
    """
    check_claim()
    if not location.store.is_near:
        before_sending(len(data))
    requested(location, f"write {len(data)} bytes", lambda: location.store.put(location.path, data))


class _Output:
    def __init__(self, location: Location, upload: UploadBuffers) -> None:
        self._location = location
        with mapped_errors(location, "create it"):
            self._output = location.store.create(location.path, upload)

    def write(self, buffer: Buffer) -> None:
        if not self._location.store.is_near:
            before_sending(len(buffer))
        with mapped_errors(self._location, f"write {len(buffer)} bytes"):
            self._output.write(buffer)

    def finish(self) -> None:
        with mapped_errors(self._location, "complete it"):
            self._output.finish()

    def discard(self) -> None:
        """Discard an unfinished file after a failure; if that fails as well, note it: the first failure is raised."""
        try:
            with mapped_errors(self._location, "give it up"):
                self._output.discard()
        except StorageError as error:
            current_progress().note(f"an unfinished file for {self._location} could not be removed: {error}")
