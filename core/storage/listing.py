"""Finds files and directories, and lists them."""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from reshard.core.errors import StorageError, UnusableStorageError
from reshard.core.runtime.local_files import is_irregular
from reshard.core.storage.store import DIRECTORY, Entry
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location

Result = TypeVar("Result")


def stat(location: Location, action: str = "look for it") -> Entry:
    """Describe a file or directory.

    Raises:
        StorageError: it does not exist, or the storage does not answer.
    """
    return requested(location, action, lambda: location.store.stat(location.path))


def kind_of(location: Location) -> str | None:
    """Kind of a location: `file`, `directory`, something else; None if nothing is there.

    Raises:
        StorageError: the storage does not answer. (fsspec's own `exists` takes any failure for a no.)
    """
    return unless_missing(lambda: stat(location).kind)


def exists(location: Location) -> bool:
    """True if a file or directory exists.

    Raises:
        StorageError: the storage does not answer.
    """
    return kind_of(location) is not None


def lacks_directory(location: Location) -> bool:
    """True if the directory that a file would be in does not exist; object stores need none."""
    return location.store.has_paths and not os.path.isdir(location.parent.path)


def list_folder(location: Location, action: str = "list it") -> Sequence[Entry]:
    """Describe the files and directories in a directory; of a file, the file itself.

    Raises:
        StorageError: the directory does not exist, or cannot be listed.
    """
    return requested(location, action, lambda: location.store.list(location.path))


def looked_into(location: Location, action: str) -> tuple[str, Sequence[Entry]]:
    """Return the kind of a location, as `kind_of` does, and of a directory its entries, as `list_folder` does.

    Raises:
        StorageError: nothing is there, or the storage does not answer.
    """
    found = list_folder(location, action)
    if [entry.path for entry in found] == [location.path]:
        return found[0].kind, []
    return DIRECTORY, found


def names_in(location: Location) -> list[str]:
    """Return the names in a directory, in order.

    Raises:
        StorageError: the directory does not exist, or cannot be listed.
    """
    return sorted(location.child(entry.name).name for entry in list_folder(location))


def find_files(location: Location) -> list[Location]:
    """Return all files below a directory; none if it does not exist.

    Raises:
        StorageError: the files cannot be listed.
    """
    return [Location(location.store, path) for path in find_entries(location)]


def find_entries(location: Location) -> dict[str, Entry]:
    """Describe all files below a directory, by path, in this order; none if it does not exist.

    Raises:
        StorageError: the files cannot be listed.
    """
    found = requested(location, "list the files in it", lambda: location.store.find(location.path))
    return {entry.path: entry for entry in found}


def is_missing(error: StorageError) -> bool:
    """True if an error means that a file or directory does not exist; a missing bucket does not count."""
    return not isinstance(error, UnusableStorageError) and isinstance(
        error.__cause__, FileNotFoundError | NotADirectoryError
    )


def has_no_file(error: StorageError) -> bool:
    """True if an error means that a location has no regular file: nothing, a directory, a pipe or the like."""
    return is_missing(error) or is_irregular(error.__cause__)


def names_if_directory(directory: Location) -> Sequence[str]:
    """Return the names in a directory; none if it is a file, or has vanished."""
    return unless_missing(lambda: names_in(directory)) or ()


def unless_missing(work: Callable[[], Result]) -> Result | None:
    """Return the result of `work`; None if it fails because a file or directory does not exist."""
    try:
        return work()
    except StorageError as error:
        if is_missing(error):
            return None
        raise
