"""Local files that appear at once: written beside their place under a temporary name, then renamed into it.

The writer keeps the temporary file locked until it has its name. The kernel releases the lock when the process ends,
however it ends, so a temporary file that can be locked is abandoned. On some network file systems, locks are
known on one node only: there it may also be one that another node is writing, and only its age tells them apart.
"""

import errno
import fcntl
import os
import re
import stat
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import IO, BinaryIO

_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def is_temporary(name: str) -> bool:
    """True for the name of a local file being written, or left behind by a killed writer."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def is_leftover(name: str) -> bool:
    """True for a temporary file's name, and for one that network file systems give to files removed while open."""
    return is_temporary(name) or name.startswith((".nfs", ".fuse_hidden"))


def temporary_path(target: str) -> str:
    """Return an unused temporary path for a file, after creating its directory."""
    # in the directory of the final name: rename must not cross file systems
    path = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{uuid.uuid4().hex[:8]}.tmp")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    check_unlinked_parent(path)
    return path


def open_temporary(target: str) -> tuple[str, BinaryIO]:
    """Create a temporary file for a file, and lock it until it is closed; return its path as well."""
    while True:
        path = temporary_path(target)
        file = open(path, "xb", buffering=0)
        # taken for abandoned before it was locked, it is removed
        if _is_lockable(file, default=True) and os.path.exists(path):
            return path, file
        file.close()


def remove_abandoned(directory: str, wanted: Callable[[str], bool], unchanged_seconds: float = 0) -> None:
    """Remove the temporary files of wanted names, in a local directory, whose writers have ended.

    `unchanged_seconds`: leave those that have changed since, for other nodes may be writing them.

    Raises:
        OSError: one cannot be removed.
    """
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if not is_temporary(name) or not wanted(name):
            continue
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_mtime > time.time() - unchanged_seconds:
                continue
            with open(path, "rb+", buffering=0) as file:
                if _is_lockable(file, default=False):
                    os.unlink(path)


def _is_lockable(file: IO[bytes], default: bool) -> bool:
    """Lock a file; False if another process holds the lock, `default` where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return default
    return True


def check_unlinked_parent(path: str) -> None:
    """Check before a write or removal that no link leads to the file's directory: parsing resolved all links."""
    directory = os.path.dirname(path)
    if (found := os.path.realpath(directory)) != directory:
        raise OSError(errno.ELOOP, f"a link leads from {directory} to {found}, and nothing is changed through links")


def rename_into_place(temporary: str, path: str) -> None:
    """Rename a finished file to its final path, replacing an empty directory if need be."""
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        with suppress(OSError):
            os.rmdir(path)
        os.replace(temporary, path)


def unlink_if_exists(path: str) -> None:
    """Remove a local file, if it exists."""
    if os.path.exists(path):
        os.unlink(path)


def flush_to_disk(path: str) -> None:
    """Flush a local file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
