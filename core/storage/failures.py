"""Maps errors of storages to ours: which URL, which action failed, and whether a retry may help."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import ReshardError, StorageError, UnusableStorageError
from reshard.core.storage.store import NO_FILE, ChangedFileError, Reason
from reshard.core.storage.urls import Location

_OWN = ("builtins", "reshard")
"""Packages whose errors say nothing but what they are made of."""
_CHANGED = Reason("it changed while it was being read", transient=True)


@contextmanager
def mapped_errors(location: Location, action: str) -> Iterator[None]:
    """Raise errors of a storage as a StorageError that names the URL; `action` completes the sentence "cannot …"."""
    try:
        yield
    except ReshardError:
        raise
    except Exception as error:
        is_changed = isinstance(error, ChangedFileError)
        reason = _CHANGED if is_changed else location.store.reason_of(error, location.path)
        if reason is None:
            raise
        kind = UnusableStorageError if reason.unusable else StorageError
        message = f"{location}: cannot {action}: {reason.text}"
        raise kind(message, transient=reason.transient) from _shown(error, reason)


def _shown(error: Exception, reason: Reason) -> Exception | None:
    """Return the cause that tracebacks show: not a client's error, which may repeat a URL or an answer with a token."""
    is_own = type(error).__module__.partition(".")[0] in _OWN
    if isinstance(error, OSError) and is_own and not (isinstance(error, FileNotFoundError) and error.errno is None):
        return error
    return FileNotFoundError(errno.ENOENT, reason.text) if reason == NO_FILE else None
