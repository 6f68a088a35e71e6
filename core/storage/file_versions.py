"""What tells whether a file is the one that was there before.

Of a local file these are its size, its modification time, and its change time, which no program can set: it tells of a
file that was rewritten in place and given its old modification time. It also changes with the mode, the owner and the
number of links. Inode numbers are left out: not all network file systems keep them. Of an object it is the etag.
Earlier versions of reshard recorded no change time.
"""

import os
import re
from typing import Any

_CHANGE_TIME = re.compile(r"-c\d+(?=\+|$)")

TOUCHED = (
    "of the same size and modification time, but changed since: it was rewritten and given its old time, or its mode, "
    "owner or links were changed"
)
"""What messages say of a file of which only the change time differs."""


def local_version(status: os.stat_result) -> str:
    """The version of a local file."""
    return f"{status.st_size}-{status.st_mtime_ns}-c{status.st_ctime_ns}"


def remote_version(info: dict[str, Any]) -> str:
    """The version of a file on a remote storage, from what that says of it."""
    for key in ("ETag", "etag", "md5", "LastModified", "mtime", "created"):
        if info.get(key):
            return f"{info['size']}-{str(info[key]).strip(chr(34))}"
    return str(info["size"])


def is_same_version(known: str, found: str) -> bool:
    """Whether a file is as it was, as far as what was recorded of it tells."""
    return known == found or known == _without_change_time(found)


def is_only_touched(known: str, found: str) -> bool:
    """Whether a file has another change time than before, and nothing else differs."""
    return not is_same_version(known, found) and _without_change_time(known) == _without_change_time(found)


def difference_text(known: str, found: str) -> str:
    """How two versions of a file differ, for messages."""
    versions = f"it was {known}, it is {found}"
    return f"{versions}: {TOUCHED}" if is_only_touched(known, found) else versions


def _without_change_time(version: str) -> str:
    return _CHANGE_TIME.sub("", version)
