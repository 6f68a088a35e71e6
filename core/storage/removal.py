"""Removes files and links; files that do not exist count as removed."""

from collections.abc import Iterable
from contextlib import suppress

from reshard.core.storage.transfers import at_once, requested
from reshard.core.storage.urls import Location


def remove_file(location: Location) -> None:
    """Remove a file, if it exists; or a local link itself, or an empty local directory in the file's place.

    Raises:
        StorageError: removing failed, or a link leads to the file's local directory.
    """

    def remove() -> None:
        with suppress(FileNotFoundError):
            location.store.remove(location.path)

    requested(location, "remove it", remove)


def remove_files(locations: Iterable[Location]) -> None:
    """Remove files concurrently, those that exist."""
    for _ in at_once(remove_file, locations):
        pass
