"""Opens local files, refusing all but regular ones.

Opening a pipe waits for a writer, a device may never end, and either can have any name. So every local file is opened
non-blocking, and its type is checked before the first read.
"""

import errno
import os
import stat

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(OSError):
    """A path leads to a pipe, a socket or a device."""


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; links are followed unless `flags` forbid it.

    Raises:
        IsADirectoryError: the path is a directory.
        NotRegularError: the path is a pipe, a socket or a device.
        OSError: the file cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            # another client has a delegation or an oplock, which the server recalls while this open waits
            _check_regular(os.stat(path), path)
            return os.open(path, flags | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
        if error.errno == errno.ENXIO:  # a socket, or a pipe without a reader
            _check_regular(os.stat(path), path)
        raise
    try:
        _check_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: str) -> None:
    """Raise what `open_regular` raises unless a path leads to a regular file."""
    os.close(open_regular(path))


def is_irregular(error: BaseException | None) -> bool:
    """True if an error means that a path is not a regular file, or is a loop of links."""
    irregular = isinstance(error, NotRegularError | IsADirectoryError)
    return irregular or (isinstance(error, OSError) and error.errno == errno.ELOOP)


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise NotRegularError(errno.EINVAL, f"{kind}, not a regular file", path)
