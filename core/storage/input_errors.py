"""Storage errors of a place that a user named, as errors of the input."""

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import CatalogError, StorageError
from reshard.core.storage.listing import is_missing
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.urls import Location


@contextmanager
def storage_errors_as_input(named: Location | None = None) -> Iterator[None]:
    """Turn permanent storage errors into CatalogErrors, with a suggestion if the place a user `named` is missing."""
    try:
        yield
    except StorageError as error:
        if error.transient:
            raise
        raise CatalogError(f"{error.marked}{did_you_mean(named) if named and is_missing(error) else ''}") from error
