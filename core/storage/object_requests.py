"""Stat, list and small reads on S3, through obstore.

Listings of whole trees are s3fs's: obstore drops slashes at the ends of keys, so that a console's marker `run/` looks
like an empty object `run`.
"""

import errno
import os
import re
from collections.abc import Callable
from itertools import count
from operator import itemgetter
from typing import Any, TypeVar

from reshard.core.storage.filesystems import speaks_s3
from reshard.core.storage.object_ranges import (
    ChangedObjectError,
    ObjectRanges,
    RefusedRequestError,
    give_up,
    object_ranges,
    obstore_errors,
)
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location

Answer = TypeVar("Answer")
Entry = dict[str, Any]

_OTHER_KEY = re.compile(r"^/|//|/$|(?:^|/)\.\.?(?:/|$)|[\x00-\x1f\x7f]")
"""In keys that obstore refuses, or for which it sends others."""
_NO_SUCH_KEY = "<Code>NoSuchKey</Code>"
"""In the answer to a request for an object that does not exist, in a bucket that does."""


def asked(
    location: Location,
    action: str,
    by_obstore: Callable[[ObjectRanges], Answer],
    by_fsspec: Callable[[], Answer],
    *,
    for_good: bool = True,
) -> Answer:
    """Return the answer to a request as `requested` does: obstore's if it gets one, else s3fs's.

    What obstore fails to do is s3fs's to repeat, since it explains failures. Where s3fs gets an answer that obstore was
    refused, it is asked for everything from then on, if `for_good`.
    """
    attempts = count()

    def ask() -> Answer:
        reader = _reader(location) if next(attempts) == 0 else None
        if reader is None:
            return by_fsspec()
        try:
            return by_obstore(reader)
        except (RefusedRequestError, ChangedObjectError):
            answer = by_fsspec()
            if for_good:
                give_up(location.fs)
            return answer

    return requested(location, action, ask)


def _reader(location: Location) -> ObjectRanges | None:
    if not speaks_s3(type(location.fs)) or _OTHER_KEY.search(_split(location)[1]):
        return None
    return object_ranges(location.fs)


def _split(location: Location) -> tuple[str, str]:
    bucket, key, _ = location.fs.split_path(location.path)
    return bucket, key


def object_info(location: Location, reader: ObjectRanges) -> Entry:
    """Return the entry of an object or a prefix, as s3fs's `info` does.

    Raises:
        FileNotFoundError: neither exists.
    """
    import obstore

    bucket, key = _split(location)
    store = reader.store(bucket)
    with obstore_errors():
        found = _head(store, key) if key else None
        if found is not None:
            return _entry(bucket, found)
        # a bucket is there if it can be listed, a prefix if something is below it
        below = next(iter(obstore.list(store, key or None, chunk_size=1)), None)
    if key and not below:
        raise _missing(location)
    return _directory(location.path)


def _head(store: Any, key: str) -> Any:
    import obstore

    try:
        return obstore.head(store, key)
    except FileNotFoundError:
        return None


def object_head(location: Location, reader: ObjectRanges) -> Entry:
    """Return the entry of an object.

    Raises:
        FileNotFoundError: it does not exist.
    """
    bucket, key = _split(location)
    with obstore_errors():
        found = _head(reader.store(bucket), key)
    if found is None:
        raise _missing(location)
    return _entry(bucket, found)


def entries_in(location: Location, reader: ObjectRanges) -> list[Entry]:
    """Return the entries right below a prefix, in order; among them the prefix's own marker, with a slash at its end.

    obstore drops such slashes, but below the prefix keys that have them are in directories of their own.
    """
    import obstore

    bucket, key = _split(location)
    with obstore_errors():
        level = obstore.list_with_delimiter(reader.store(bucket), key or None)
    entries = [_entry(bucket, each) for each in level["objects"]]
    for entry in entries:
        if entry["name"] == location.path:
            entry["name"] += "/"
    entries += [_directory(f"{bucket}/{each}") for each in level["common_prefixes"]]
    if not all(entry["name"].startswith(f"{location.path}/") for entry in entries):
        raise RefusedRequestError
    return sorted(entries, key=itemgetter("name"))


def object_beginning(location: Location, reader: ObjectRanges, max_bytes: int) -> bytes:
    """Return the first bytes of an object; all of them, if there are no more than `max_bytes`.

    Raises:
        FileNotFoundError: it does not exist.
    """
    import obstore

    bucket, key = _split(location)
    with obstore_errors():
        try:
            return bytes(obstore.get(reader.store(bucket), key, options={"range": (0, max_bytes)}).bytes())
        except FileNotFoundError as error:
            if _NO_SUCH_KEY not in str(error):
                raise
    raise _missing(location)


def _missing(location: Location) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location.path)


def _entry(bucket: str, found: Any) -> Entry:
    if not found["e_tag"]:
        raise RefusedRequestError  # s3fs has the time of the last change as it was sent
    return {
        "name": f"{bucket}/{found['path']}",
        "type": "file",
        "size": found["size"],
        "ETag": found["e_tag"],
        "LastModified": found["last_modified"],
    }


def _directory(path: str) -> Entry:
    return {"name": path, "type": "directory", "size": 0}
