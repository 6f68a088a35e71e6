"""File versions: strings that differ if a file was changed or replaced.

The version of a local file is its size, modification time and change time. No program can set the change time, so it
reveals a file that was rewritten in place and given its old modification time. It also changes with the mode, the owner
and the number of links. Inode numbers are left out: not all network file systems keep them. The version of an object is
its size and etag. Earlier versions of reshard recorded no change time.
"""

import os
import re
from typing import Any

_CHANGE_TIME = re.compile(r"-c\d+(?=\+|$)")

TOUCHED = (
    "of the same size and modification time, but changed since: it was rewritten and given its old time, or its mode, "
    "owner or links were changed"
)
"""Message text for a file of which only the change time differs."""


def local_version(status: os.stat_result) -> str:
    """The version of a local file."""
    return f"{status.st_size}-{status.st_mtime_ns}-c{status.st_ctime_ns}"


def remote_version(info: dict[str, Any]) -> str:
    """The version of a remote file, from fsspec's `info`."""
    for key in ("ETag", "etag", "md5", "LastModified", "mtime", "created"):
        if info.get(key):
            return f"{info['size']}-{str(info[key]).strip(chr(34))}"
    return str(info["size"])


def is_same_version(known: str, found: str) -> bool:
    """Whether two versions agree; a `known` one without a change time is compared without it."""
    return known == found or known == _without_change_time(found)


def is_only_touched(known: str, found: str) -> bool:
    """Whether two versions differ in their change times alone."""
    return not is_same_version(known, found) and _without_change_time(known) == _without_change_time(found)


def difference_text(known: str, found: str) -> str:
    """Message text: how two versions of a file differ."""
    versions = f"it was {known}, it is {found}"
    return f"{versions}: {TOUCHED}" if is_only_touched(known, found) else versions


def _without_change_time(version: str) -> str:
    return _CHANGE_TIME.sub("", version)
