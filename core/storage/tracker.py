"""The tracker of a Checkpoint 2.0: the file that names the iteration to load, written after that is complete."""

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.storage.checkpoint2_names import TRACKER_NAME
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes

_MAX_BYTES = 64
_MAX_DIGITS = 18


def read_tracker(root: Location) -> int | None:
    """Return the iteration that the tracker names; None without a tracker.

    Raises:
        CatalogError: it holds no number.
        StorageError: it cannot be read.
    """
    location = root.child(TRACKER_NAME)
    try:
        data = unless_missing(lambda: read_small_file(location, _MAX_BYTES))
    except CheckpointError as error:
        raise CatalogError(f"{location}: is not the number of an iteration") from error
    if data is None:
        return None
    text = data.strip()
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise CatalogError(f"{location}: is not the number of an iteration: {text[:40]!r}")
    return int(text)


def write_tracker(root: Location, number: int) -> None:
    """Name an iteration in the tracker, replacing what was there."""
    write_bytes(root.child(TRACKER_NAME), str(number).encode())
