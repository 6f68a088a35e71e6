"""Looks for files and directories, and lists them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reshard.core.errors import StorageError, UnusableStorageError
from reshard.core.runtime.local_files import is_irregular
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location

Result = TypeVar("Result")


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
