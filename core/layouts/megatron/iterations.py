"""Finds the iteration that a URL means: one itself, or the one that the tracker beside several names."""

from collections.abc import Sequence

from reshard.core.layouts.megatron.names import (
    MODEL_NAME,
    TRACKER,
    is_iteration,
    is_rank_folder,
    iteration_names,
    parse_iteration,
)
from reshard.core.layouts.step_choice import NumberedSteps, check_asked, choose_step
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location

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
        check_asked(location, "iteration", number, step)
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
    return choose_step(NumberedSteps(root, iterations, incomplete, TRACKER.word), step, TRACKER)


def incomplete(directory: Location) -> str:
    """Return what an iteration's directory lacks, by names alone; empty if nothing."""
    folders = [name for name in names_if_directory(directory) if is_rank_folder(name)]
    lacking = [name for name in folders if MODEL_NAME not in names_if_directory(directory.child(name))]
    if lacking:
        return f"{MODEL_NAME} is not in {listed(lacking, _MAX_LISTED)}"
    return "" if folders else "it has no folders of ranks"
