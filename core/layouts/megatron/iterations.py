"""Finds the iteration that a URL means: one itself, or the one that the tracker beside several names."""

from collections.abc import Sequence

from reshard.core.errors import CatalogError
from reshard.core.layouts.megatron.names import (
    MODEL_NAME,
    RELEASE,
    TRACKER_NAME,
    is_iteration,
    is_rank_folder,
    iteration_names,
    parse_iteration,
    read_tracker,
)
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location
from reshard.core.text.options import option, source_option, spelled

_MAX_LISTED = 6


class Iteration(Record):
    """One iteration's directory.

    Attributes:
        url: the checkpoint, as it was named: the directory of this iteration, or of all.
        number: None if the directory's name has none.
        names: all names in the directory.
        numbers: of all iterations, ascending; empty if it was named itself.
        notes: what was chosen and why.
    """

    url: str
    location: Location
    number: int | None
    names: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of ranks' folders."""
        return tuple(name for name in self.names if is_rank_folder(name))


def list_iterations(root: Location, names: Sequence[str]) -> dict[int, str]:
    """Return the iterations in a directory with these names, ascending: number -> name; empty if there are none.

    The newest that is not empty decides whether they are of this layout.
    """
    found = iteration_names(names)
    for number in reversed(found):
        inside = names_if_directory(root.child(found[number]))
        if inside:
            return found if is_iteration(inside) else {}
    return {}


def iteration_in(location: Location, names: Sequence[str], step: str = "") -> Iteration | None:
    """Return the iteration that a step means in a directory with these names; None if it is of another layout.

    Raises:
        CatalogError: there is no such iteration, or none is complete.
        StorageError: the storage does not answer.
    """
    if is_iteration(names):
        number = parse_iteration(location.name)
        if step and step != str(number):
            raise CatalogError(f"{location}: is iteration {number}, not {step}: leave out {source_option('step')}")
        return Iteration(str(location), location, number, tuple(names))
    iterations = list_iterations(location, names)
    if not iterations:
        return None
    number, notes = choose_iteration(location, iterations, step)
    directory = location.child(iterations[number])
    return Iteration(str(location), directory, number, tuple(names_if_directory(directory)), tuple(iterations), notes)


def choose_iteration(root: Location, iterations: dict[int, str], step: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of the iteration to read, and notes on the choice.

    Raises:
        CatalogError: there is no such iteration, or none is complete.
        StorageError: the storage does not answer.
    """
    there = listed([str(number) for number in reversed(iterations)], _MAX_LISTED)
    if step:
        if not step.isdigit() or int(step) not in iterations:
            raise CatalogError(f"{root}: has no iteration {step}; it has {there}")
        return int(step), ()
    tracked = read_tracker(root)
    if tracked is None:
        return _newest_complete(root, iterations)
    if tracked not in iterations:
        raise CatalogError(
            f"{root}: {TRACKER_NAME} names iteration {tracked}, which is not there; there are {there}: name one with "
            f"{source_option('step')}"
        )
    newer = [number for number in iterations if number > tracked]
    return tracked, tuple(_newer_note(root.child(iterations[number]), number, tracked) for number in newer)


def incomplete(directory: Location) -> str:
    """Return what an iteration's directory lacks, by names alone; empty if nothing."""
    folders = [name for name in names_if_directory(directory) if is_rank_folder(name)]
    lacking = [name for name in folders if MODEL_NAME not in names_if_directory(directory.child(name))]
    if lacking:
        return f"{MODEL_NAME} is not in {listed(lacking, _MAX_LISTED)}"
    return "" if folders else "it has no folders of ranks"


def _newer_note(directory: Location, number: int, tracked: int) -> str:
    problem = incomplete(directory)
    if problem:
        return f"iteration {number} is newer, and passed over: it is incomplete: {problem}"
    why = f"the tracker names {tracked or RELEASE}; {option('step', str(number))} reads it"
    return spelled(f"iteration {number} is newer, and passed over: {why}")


def _newest_complete(root: Location, iterations: dict[int, str]) -> tuple[int, tuple[str, ...]]:
    notes: list[str] = []
    for number in reversed(iterations):
        problem = incomplete(root.child(iterations[number]))
        if not problem:
            note = f"there is no {TRACKER_NAME}: iteration {number} is the newest complete one"
            return number, (note, *notes)
        notes.append(f"iteration {number} is passed over: {problem}")
    raise CatalogError(f"{root}: no iteration is complete: {'; '.join(notes[:_MAX_LISTED])}")
