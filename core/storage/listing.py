"""Finds files and directories, and lists them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reshard.core.errors import StorageError, UnusableStorageError
from reshard.core.runtime.local_files import is_irregular
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location

Result = TypeVar("Result")


def file_info(location: Location, action: str = "look for it") -> dict[str, Any]:
    """Return a storage's entry for a file or directory: `type`, `size` in bytes and more.

    Raises:
        StorageError: it does not exist, or the storage does not answer.
    """

    def look() -> dict[str, Any]:
        location.fs.invalidate_cache()
        return dict(location.fs.info(location.path))

    return requested(location, action, look)


def kind_of(location: Location) -> str | None:
    """Kind of a location: `file`, `directory`, something else; None if nothing is there.

    Raises:
        StorageError: the storage does not answer. (fsspec's own `exists` takes any failure for a no.)
    """
    return unless_missing(lambda: str(file_info(location)["type"]))


def exists(location: Location) -> bool:
    """True if a file or directory exists.

    Raises:
        StorageError: the storage does not answer.
    """
    return kind_of(location) is not None


def list_folder(location: Location, action: str = "list it") -> list[dict[str, Any]]:
    """Return a storage's entries for the files and directories in a directory: `name` (a path), `type`, `size`, ….

    The empty objects that mark directories on object stores count as directories; the directory's own is left out.

    Raises:
        StorageError: the directory does not exist, or cannot be listed.
    """

    def look() -> list[dict[str, Any]]:
        location.fs.invalidate_cache(location.path)
        return list(location.fs.ls(location.path, detail=True))

    entries = (
        entry | {"type": "directory"} if _is_marker(entry) else entry for entry in requested(location, action, look)
    )
    return [entry for entry in entries if entry["name"] != f"{location.path}/"]


def names_in(location: Location) -> list[str]:
    """Return the names in a directory, in order.

    Raises:
        StorageError: the directory does not exist, or cannot be listed.
    """
    # a listing may have a directory's own name, or a link's
    entries = list_folder(location)
    return sorted(location.child(entry["name"].rstrip("/").rpartition("/")[2]).name for entry in entries)


def find_files(location: Location, *, markers: bool = False) -> list[Location]:
    """Return all files below a directory; none if it does not exist.

    Args:
        markers: include the empty objects that mark directories on object stores.

    Raises:
        StorageError: the files cannot be listed.
    """
    found = find_entries(location)
    return [Location(location.fs, path) for path, entry in found.items() if markers or not _is_marker(entry)]


def find_entries(location: Location) -> dict[str, dict[str, Any]]:
    """Return a storage's entries for all files below a directory, by path; none if it does not exist.

    Raises:
        StorageError: the files cannot be listed.
    """

    def look() -> dict[str, dict[str, Any]]:
        location.fs.invalidate_cache(location.path)
        return dict(location.fs.find(location.path, detail=True))

    return requested(location, "list the files in it", look)


def _is_marker(entry: Mapping[str, Any]) -> bool:
    """True for an object such as `models/`, which consoles create in place of a directory."""
    return str(entry["name"]).endswith("/") and not entry.get("size")


def is_missing(error: StorageError) -> bool:
    """True if an error means that a file or directory does not exist; a missing bucket does not count."""
    return not isinstance(error, UnusableStorageError) and isinstance(
        error.__cause__, FileNotFoundError | NotADirectoryError
    )


def has_no_file(error: StorageError) -> bool:
    """True if an error means that a location has no regular file: nothing, a directory, a pipe or the like."""
    return is_missing(error) or is_irregular(error.__cause__)


def unless_missing(work: Callable[[], Result]) -> Result | None:
    """Return the result of `work`; None if it fails because a file or directory does not exist."""
    try:
        return work()
    except StorageError as error:
        if is_missing(error):
            return None
        raise
