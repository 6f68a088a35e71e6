"""The tracker of a Checkpoint 2.0: the file that names the iteration to load, written after that is complete."""

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.storage.checkpoint2_names import TRACKER_NAME
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.local_lease import exclusive, remove_lease_directory
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes

_MAX_BYTES = 64
_GATE_DIRECTORY = ".reshard-tracker"
"""Name of a directory that is there only while a run advances a local tracker."""
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
        shown = text[:40].decode(errors="replace")
        raise CatalogError(f"{location}: is not the number of an iteration: {shown!r}")
    return int(text)


def advance_tracker(root: Location, number: int) -> int:
    """Name an iteration in the tracker, unless that names a newer one; return the number that it names then.

    Runs that advance a local tracker at once take turns. Object stores have no locks: there the last one counts.

    Raises:
        CatalogError: the tracker holds no number.
        StorageError: it cannot be read or written.
    """
    gate = root.child(_GATE_DIRECTORY)
    with exclusive(gate):
        named = read_tracker(root)
        if named is None or named < number:
            write_bytes(root.child(TRACKER_NAME), str(number).encode())
        if gate.is_local:
            remove_lease_directory(gate, gate)
    return number if named is None else max(named, number)
