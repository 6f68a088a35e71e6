"""How a file is known to be the same as before, and when it was last changed, as far as its storage tells."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.files import file_info, unless_missing
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location


@dataclass(frozen=True)
class Stamp:
    """A file as it was when it was looked at.

    Attributes:
        size_bytes: its size.
        changed: seconds since the epoch, by the clock of whoever stores it; None if that is not told.
        touched: when the file's mode, links, name or contents last changed, whatever time it was given; local ones'.
        version: its etag, or else a modification time as exact as it gets.
    """

    size_bytes: int
    changed: float | None
    version: str
    touched: float | None = None


def read_stamp(location: Location) -> Stamp | None:
    """A file's stamp; of a link, that of what it leads to. None if it is not there.

    Raises:
        StorageError: it cannot be told.
    """
    return unless_missing(lambda: _local_stamp(location) if location.is_local else _remote_stamp(location))


def read_stamps(locations: Iterable[Location]) -> list[Stamp | None]:
    """The stamps of many files, in order.

    Raises:
        StorageError: one cannot be told.
    """
    asked = list(locations)
    if all(location.is_local for location in asked):
        return [read_stamp(location) for location in asked]
    return list(at_once(read_stamp, asked))


def _local_stamp(location: Location) -> Stamp:
    with mapped_errors(location, "look for it"):
        status = os.stat(location.path)
    return Stamp(status.st_size, status.st_mtime, str(status.st_mtime_ns), status.st_ctime)


def _remote_stamp(location: Location) -> Stamp:
    info = file_info(location)
    changed = next(filter(None, (info.get(key) for key in ("LastModified", "mtime", "created"))), None)
    return Stamp(int(info["size"] or 0), _seconds(changed), str(info.get("ETag") or changed))


def _seconds(moment: Any) -> float | None:
    if isinstance(moment, datetime):
        return moment.timestamp()
    return float(moment) if isinstance(moment, int | float) else None
