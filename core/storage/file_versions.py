"""File versions: strings that differ if a file was changed or replaced.

The version of a local file is its size, modification time and change time. No program can set the change time, so it
reveals a file that was rewritten in place and given its old modification time. It also changes with the mode, the
owner, the name and the number of links: where only it differs, values decide (`conversion.touched_sources`). Inode
numbers are left out: not all network file systems keep them. The version of an object is its size and etag. Earlier
versions of reshard recorded no change time.
"""

import os
import re
from collections.abc import Iterable

from reshard.core.runtime.records import Record
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.listing import stat, unless_missing
from reshard.core.storage.transfers import each_at
from reshard.core.storage.urls import Location

_CHANGE_TIME = re.compile(r"-c\d+(?=\+|$)")

TOUCHED = (
    "of the same size and modification time, but changed since: it was rewritten and given its old time, or its mode, "
    "owner or links were changed"
)
"""Message text for a file of which only the change time differs."""


def is_same_version(known: str, found: str) -> bool:
    """True if two versions agree; a `known` one without a change time is compared without it."""
    return known == found or known == _without_change_time(found)


def is_only_touched(known: str, found: str) -> bool:
    """True if two versions differ only in their change times."""
    return not is_same_version(known, found) and _without_change_time(known) == _without_change_time(found)


def difference_text(known: str, found: str) -> str:
    """Format the difference of two versions of a file."""
    versions = f"it was {known}, it is {found}"
    return f"{versions}: {TOUCHED}" if is_only_touched(known, found) else versions


def _without_change_time(version: str) -> str:
    return _CHANGE_TIME.sub("", version)


def file_identity(location: Location) -> object:
    """Return what all names of a file have in common, whether links or hard links; of an object its URL.

    Raises:
        StorageError: a local file cannot be looked at.
    """
    if not location.store.has_paths:
        return str(location)
    with mapped_errors(location, "look for it"):
        status = os.stat(location.path)
    # not all network file systems number their files, but these have no hard links either
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else os.path.realpath(location.path)


class Stamp(Record):
    """The state of a file at the time of a look.

    Attributes:
        changed: modification time in seconds since the epoch, by the storage's clock; None if unknown.
        version: etag, or else the times of changes as exactly as they are known.
        touched: as an `Entry` has it.
    """

    size_bytes: int
    changed: float | None
    version: str
    touched: float | None = None


def read_stamp(location: Location) -> Stamp | None:
    """Return a file's stamp, following links; None if it does not exist.

    Raises:
        StorageError: the storage does not answer.
    """
    return unless_missing(lambda: _stamp(location))


def read_stamps(locations: Iterable[Location]) -> list[Stamp | None]:
    """Return the stamps of many files of one storage, in order.

    Raises:
        StorageError: the storage does not answer.
    """
    asked = list(locations)
    return list(each_at(asked[0].store, read_stamp, asked)) if asked else []


def _stamp(location: Location) -> Stamp:
    found = stat(location)
    return Stamp(found.size_bytes, found.changed, found.version, found.touched)
