"""Copies files within one storage, without their bytes passing through this process where possible."""

from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim


def copy_file(source: Location, target: Location) -> None:
    """Copy a file within one storage; the copy appears only when it is whole.

    Raises:
        StorageError: the file cannot be copied.
    """
    check_claim()
    requested(target, f"copy {source} to it", lambda: target.store.copy(source.path, target.path))
