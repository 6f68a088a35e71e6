"""Trackers: files beside the directories of a training's steps that name the one to load, written when it is complete.

Several libraries name theirs alike; what may be in it differs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from reshard.core.errors import CatalogError, CheckpointError, TargetBusyError, TargetError
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
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
_MAX_DIGITS = 18


class Tracker(Record):
    """The form of a tracker; by default that of a Checkpoint 2.0, which holds a number.

    Attributes:
        name: its file's name.
        word: what a step is called.
        problem: what is wrong with one that names no step, for messages.
        before: text before the number.
        after: text after the number.
        words: what may stand there instead of a number -> the number that they count as.
        gate: name of a directory that is there only while a run advances a local tracker, or after it was killed then.
    """

    name: str = "latest_checkpointed_iteration.txt"
    word: str = "iteration"
    problem: str = "is not the number of an iteration"
    before: str = ""
    after: str = ""
    words: Mapping[str, int] = MappingProxyType({})
    gate: str = ".reshard-tracker"

    def text_of(self, number: int) -> str:
        """Return what names a step."""
        word = next((word for word, meant in self.words.items() if meant == number), None)
        return f"{self.before}{number}{self.after}" if word is None else word

    def number_in(self, text: str) -> int | None:
        """Return the number of the step that a text names; None if it names none."""
        if text in self.words:
            return self.words[text]
        digits = text.removeprefix(self.before).removesuffix(self.after)
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
        return int(digits) if is_number and text == f"{self.before}{digits}{self.after}" else None


def read_tracker(root: Location, tracker: Tracker) -> int | None:
    """Return the step that the tracker names; None without a tracker.

    Raises:
        CatalogError: it names none.
        StorageError: it cannot be read.
    """
    location = root.child(tracker.name)
    text = read_tracked(location, tracker.problem, _MAX_BYTES)
    if text is None:
        return None
    number = tracker.number_in(text)
    if number is None:
        raise CatalogError(f"{location}: {tracker.problem}: {text[:40]!r}")
    return number


def read_tracked(location: Location, problem: str, max_bytes: int) -> str | None:
    """Return the text in a tracker; None without one. `problem` is what is wrong with one that names no step.

    Raises:
        CatalogError: it is too large for one.
        StorageError: it cannot be read.
    """
    try:
        data = unless_missing(lambda: read_small_file(location, max_bytes))
    except CheckpointError as error:
        raise CatalogError(f"{location}: {problem}") from error
    return None if data is None else data.strip().decode(errors="replace")


def advance_tracker(root: Location, number: int, tracker: Tracker) -> int:
    """Name a step in the tracker, unless that names a newer one; return the number that it names then.

    Runs that advance a local tracker at once take turns. Object stores have no locks: there the last one counts.

    Raises:
        CatalogError: the tracker holds no number.
        StorageError: it cannot be read or written.
    """
    gate = root.child(tracker.gate)
    with exclusive(gate):
        named = read_tracker(root, tracker)
        if named is None or named < number:
            write_bytes(root.child(tracker.name), tracker.text_of(number).encode())
        if has_locks(gate):
            remove_lease_directory(gate, gate)
    return number if named is None else max(named, number)


def check_tracker(root: Location, tracker: Tracker) -> None:
    """Refuse the tracker of a target that cannot be advanced.

    Raises:
        TargetError: it names no step.
        StorageError: it cannot be read.
    """
    with _refused_as_target():
        read_tracker(root, tracker)


def track(root: Location, number: int, tracker: Tracker) -> None:
    """Make a committed target the step to load, unless the tracker names a newer one.

    Raises:
        TargetError: the tracker names no step.
        StorageError: it cannot be read or written.
    """
    with _refused_as_target():
        named = advance_tracker(root, number, tracker)
    if named > number:
        current_progress().note(f"{root.child(tracker.name)} names {tracker.word} {named}, which is newer, as before")


def tracker_leftovers(root: Location, tracker: Tracker) -> list[Location]:
    """Find what is left of runs that were killed while they advanced a tracker under a lock.

    Raises:
        TargetBusyError: a run is advancing it.
        TargetError: other files are where runs lock it.
        StorageError: the directory cannot be listed.
    """
    if not has_locks(root):
        return []
    gate = root.child(tracker.gate)
    check_gate(gate)
    if is_entered(gate):
        raise TargetBusyError(
            f"{root}: a run is writing {tracker.name}. Nothing was removed: try again in a moment, or stop it"
        )
    return [root.child(name) for name in list_names(root) if name == tracker.gate or _is_unfinished(name, tracker)]


def remove_tracker_leftovers(root: Location, tracker: Tracker) -> None:
    """Remove what `tracker_leftovers` finds; a run that advances the tracker just now is waited for."""
    gate = root.child(tracker.gate)
    with exclusive(gate):
        with mapped_errors(root, "remove unfinished files in it"):
            remove_unfinished(root, partial(_is_unfinished, tracker=tracker))
        remove_lease_directory(gate, gate)


def _is_unfinished(name: str, tracker: Tracker) -> bool:
    return is_temporary(name) and name.startswith(f".{tracker.name}.")


@contextmanager
def _refused_as_target() -> Iterator[None]:
    """Refuse a target whose tracker names no step: a TargetError in place of the CatalogError."""
    try:
        yield
    except CatalogError as error:
        raise TargetError(f"{error.marked}. Remove it, or correct it") from error
