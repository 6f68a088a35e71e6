"""Maps errors of storages to ours: which URL, which action failed, and whether a retry may help."""

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import ReshardError, StorageError, UnusableStorageError
from reshard.core.storage.urls import Location


@contextmanager
def mapped_errors(location: Location, action: str) -> Iterator[None]:
    """Raise errors of a storage as a StorageError that names the URL; `action` completes the sentence "cannot …"."""
    try:
        yield
    except ReshardError:
        raise
    except Exception as error:
        reason = location.store.reason_of(error, location.path)
        if reason is None:
            raise
        kind = UnusableStorageError if reason.unusable else StorageError
        raise kind(f"{location}: cannot {action}: {reason.text}", transient=reason.transient) from error
