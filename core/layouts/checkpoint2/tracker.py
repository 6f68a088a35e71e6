"""The tracker of a Checkpoint 2.0: the file that names the iteration to load, written after that is complete.

Other libraries have one of the same name, in which words may stand for iterations.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from reshard.core.errors import CatalogError, CheckpointError, TargetBusyError, TargetError
from reshard.core.layouts.checkpoint2.names import TRACKER_NAME
from reshard.core.storage.atomic_rename import is_temporary
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.leases.local_lease import exclusive, has_locks, is_entered, remove_lease_directory
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.own_files import check_gate
from reshard.core.storage.publishing import list_names, remove_unfinished
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes

_MAX_BYTES = 64
_GATE_DIRECTORY = ".reshard-tracker"
"""Name of a directory that is there only while a run advances a local tracker, or after it was killed then."""
_MAX_DIGITS = 18
_NO_WORDS: Mapping[str, int] = MappingProxyType({})


def read_tracker(root: Location, words: Mapping[str, int] = _NO_WORDS) -> int | None:
    """Return the iteration that the tracker names; None without a tracker.

    `words` are what may stand there instead of a number -> the number that they count as.

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
    text = data.strip().decode(errors="replace")
    if text in words:
        return words[text]
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise CatalogError(f"{location}: is not the number of an iteration: {text[:40]!r}")
    return int(text)


def advance_tracker(root: Location, number: int, words: Mapping[str, int] = _NO_WORDS) -> int:
    """Name an iteration in the tracker, unless that names a newer one; return the number that it names then.

    Runs that advance a local tracker at once take turns. Object stores have no locks: there the last one counts.

    Raises:
        CatalogError: the tracker holds no number.
        StorageError: it cannot be read or written.
    """
    gate = root.child(_GATE_DIRECTORY)
    with exclusive(gate):
        named = read_tracker(root, words)
        if named is None or named < number:
            text = next((word for word, meant in words.items() if meant == number), str(number))
            write_bytes(root.child(TRACKER_NAME), text.encode())
        if has_locks(gate):
            remove_lease_directory(gate, gate)
    return number if named is None else max(named, number)


def tracker_leftovers(root: Location) -> list[Location]:
    """Find what is left of runs that were killed while they advanced a tracker under a lock.

    Raises:
        TargetBusyError: a run is advancing it.
        TargetError: other files are where runs lock it.
        StorageError: the directory cannot be listed.
    """
    if not has_locks(root):
        return []
    gate = root.child(_GATE_DIRECTORY)
    check_gate(gate)
    if is_entered(gate):
        raise TargetBusyError(
            f"{root}: a run is writing {TRACKER_NAME}. Nothing was removed: try again in a moment, or stop it"
        )
    return [root.child(name) for name in list_names(root) if name == _GATE_DIRECTORY or _is_unfinished(name)]


def remove_tracker_leftovers(root: Location) -> None:
    """Remove what `tracker_leftovers` finds; a run that advances the tracker just now is waited for."""
    gate = root.child(_GATE_DIRECTORY)
    with exclusive(gate):
        with mapped_errors(root, "remove unfinished files in it"):
            remove_unfinished(root, _is_unfinished)
        remove_lease_directory(gate, gate)


def _is_unfinished(name: str) -> bool:
    return is_temporary(name) and name.startswith(f".{TRACKER_NAME}.")


@contextmanager
def refused_as_target() -> Iterator[None]:
    """Refuse a target whose tracker holds no number: a TargetError in place of the CatalogError."""
    try:
        yield
    except CatalogError as error:
        raise TargetError(f"{error.marked}. Remove it, or correct it") from error
