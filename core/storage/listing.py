"""Finds files and directories, and lists them."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from reshard.core.errors import StorageError, UnusableStorageError
from reshard.core.runtime.local_files import is_irregular
from reshard.core.storage.filesystems import speaks_s3
from reshard.core.storage.object_requests import asked, entries_in, object_head, object_info
from reshard.core.storage.transfers import requested, submitted
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

    return asked(location, action, partial(object_info, location), look)


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

    if _has_prefixes(location):  # s3fs would list all of the parent where nothing is
        found = _level(location, action) or _file_at(location, action)
    else:
        found = requested(location, action, look)
    return _without_own(location, found)


def _without_own(location: Location, found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a directory's entries without its own marker; other markers become directories."""
    entries = (entry | {"type": "directory"} if _is_marker(entry) else entry for entry in found)
    return [entry for entry in entries if entry["name"] != f"{location.path}/"]


def looked_into(location: Location, action: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the kind of a location, as `kind_of` does, and of a directory its entries, as `list_folder` does.

    An object store is asked for both at once.

    Raises:
        StorageError: nothing is there, or the storage does not answer.
    """
    if _has_prefixes(location):
        level = submitted(partial(_level, location), action)
        if unless_missing(partial(_file_at, location, action)):
            level.cancel()
            return "file", []
        if found := level.result():
            return "directory", _without_own(location, found)
    kind = str(file_info(location, action)["type"])
    return kind, list_folder(location) if kind == "directory" else []


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
    return [file for file, entry in find_described(location) if markers or not _is_marker(entry)]


def find_described(location: Location) -> list[tuple[Location, dict[str, Any]]]:
    """Return all files below a directory, markers included, each with the storage's entry; none if it does not exist.

    Raises:
        StorageError: the files cannot be listed.
    """
    if _has_prefixes(location):  # one request, also where nothing is
        found = {entry["name"]: entry for entry in _objects(location, "list the files in it")}
    else:
        found = find_entries(location)
    return [(Location(location.fs, path), entry) for path, entry in found.items()]


def find_entries(location: Location) -> dict[str, dict[str, Any]]:
    """Return a storage's entries for all files below a directory, by path; none if it does not exist.

    Raises:
        StorageError: the files cannot be listed.
    """

    def look() -> dict[str, dict[str, Any]]:
        location.fs.invalidate_cache(location.path)
        return dict(location.fs.find(location.path, detail=True))

    return requested(location, "list the files in it", look)


def _has_prefixes(location: Location) -> bool:
    """True if directories of a location's storage are prefixes of an S3 bucket's keys."""
    return speaks_s3(type(location.fs)) and bool(location.path) and not location.fs.version_aware


def _level(location: Location, action: str) -> list[dict[str, Any]]:
    """Return the entries right below a prefix, directories among them."""
    first: Callable[[], Any] = partial(_page, location, delimiter="/")
    page = asked(location, action, partial(entries_in, location), first, for_good=False)
    return page if isinstance(page, list) else _objects(location, action, "/", page)


def _objects(
    location: Location, action: str, delimiter: str = "", page: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the entries below a prefix; with a delimiter, those of a single level. `page` is the first, if at hand."""
    bucket, _, _ = location.fs.split_path(location.path)
    found: list[dict[str, Any]] = []
    page = page or requested(location, action, partial(_page, location, delimiter))
    while True:
        for each in page.get("Contents", []):
            name = f"{bucket}/{each['Key']}"
            found.append({**each, "Key": name, "name": name, "type": "file", "size": each["Size"]})
        for each in page.get("CommonPrefixes", []):
            name = f"{bucket}/{each['Prefix'][:-1]}"
            found.append({"Key": name, "name": name, "type": "directory", "size": 0})
        if not page.get("IsTruncated"):
            return sorted(found, key=itemgetter("name"))
        next_page = partial(_page, location, delimiter, ContinuationToken=page["NextContinuationToken"])
        page = requested(location, action, next_page)


def _page(location: Location, delimiter: str, **more: str) -> Mapping[str, Any]:
    fs = location.fs
    bucket, key, _ = fs.split_path(location.path)
    where = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/" if key else "", "Delimiter": delimiter}
    page: Mapping[str, Any] = fs.call_s3("list_objects_v2", **where, **more, **fs.req_kw)
    return page


def _file_at(location: Location, action: str) -> list[dict[str, Any]]:
    """Return the entry of the file at a prefix below which nothing is; none for a bucket.

    Raises:
        StorageError: there is none.
    """
    bucket, key, _ = location.fs.split_path(location.path)
    if not key:
        return []

    def look() -> dict[str, Any]:
        head = location.fs.call_s3("head_object", Bucket=bucket, Key=key)
        return {
            "name": location.path,
            "type": "file",
            "size": head["ContentLength"],
            "ETag": head.get("ETag", ""),
            "LastModified": head.get("LastModified"),
        }

    return [asked(location, action, partial(object_head, location), look)]


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
