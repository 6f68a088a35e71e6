"""Finds the iteration of MindFormers' Checkpoint 2.0 that a URL means: the directory, its metadata and its files.

A URL names the directory with all iterations, where the tracker tells which one to load, or one iteration's directory.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.errors import CatalogError, StorageError
from reshard.core.layouts.checkpoint2.names import (
    COMMON_NAME,
    MAX_METADATA_BYTES,
    METADATA_NAME,
    MODEL,
    TRACKER,
    TensorFileName,
    iteration_name,
    parse_iteration,
    parse_tensor_file,
)
from reshard.core.layouts.step_choice import NumberedSteps, check_asked, choose_step
from reshard.core.layouts.unified.names import is_index_name
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.joined import joined_files
from reshard.core.storage.listing import names_in
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy

if TYPE_CHECKING:
    from reshard.core.layouts.checkpoint2.metadata import Metadata

_MAX_LISTED = 6


class Iteration(Record, dict=True):
    """One iteration of a Checkpoint 2.0.

    Attributes:
        url: the checkpoint, as it was named: the directory of this iteration, or of all.
        location: its directory.
        number: its number; None if the directory's name has none.
        metadata: None for the checkpoint of a single card.
        names: all names in the directory.
        notes: what was chosen and why, and what is missing from all of it.
        left_out: files that are not read.
    """

    url: str
    location: Location
    number: int | None
    metadata: "Metadata | None"
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()

    @property
    def strategy(self) -> Strategy | None:
        """The layouts in its metadata; None for a single card."""
        return self.metadata.strategy if self.metadata else None

    @cached_property
    def files(self) -> Mapping[int, tuple[str, ...]]:
        """Rank -> the names of its files, the network's first; missing ones included, if some of their kind exist."""
        found: dict[int, list[TensorFileName]] = {}
        for rank, name in self._listed:
            if name.kind not in self.missing_kinds and name.name not in self.left_out:
                found.setdefault(rank, []).append(name)
        return {
            rank: tuple(each.name for each in sorted(found[rank], key=lambda each: (each.kind, each.name)))
            for rank in sorted(found)
        }

    @property
    def tensor_files(self) -> tuple[TensorFileName, ...]:
        """The files of tensors in the directory."""
        return tuple(name for name in map(parse_tensor_file, self.names) if name is not None)

    @cached_property
    def _listed(self) -> Sequence[tuple[int, TensorFileName]]:
        if self.metadata is None:
            return [(0, name) for name in self.tensor_files]
        named = ((each.rank, parse_tensor_file(each.name)) for each in self.metadata.files.values())
        return [(rank, name) for rank, name in named if name is not None]

    @cached_property
    def missing_kinds(self) -> frozenset[str]:
        """Kinds of files that were not saved at all: the optimizer's."""
        there = frozenset(self.names)
        having = {name.kind for _, name in self._listed if name.name in there}
        return frozenset(name.kind for _, name in self._listed if name.kind != MODEL) - having

    def missing_from(self, rank: int) -> tuple[str, ...]:
        """Return the files of a rank that are not in the directory."""
        there = frozenset(self.names)
        return tuple(name for name in self.files.get(rank, ()) if name not in there)


def iteration_in(location: Location, names: Sequence[str], step: str = "") -> Iteration | None:
    """Return the iteration that a step means in a directory with these names; None if it is not of Checkpoint 2.0.

    Raises:
        CatalogError: there is no such iteration, or it is incomplete.
        StrategyError: its metadata is damaged.
        StorageError: the storage does not answer.
    """
    if holds_iterations(names):
        return _of_number(location, *_choose(location, names, step))
    return read_iteration(location, names, step) if is_iteration(names) else None


def number_in(location: Location, names: Sequence[str], step: str = "") -> int | None:
    """Return the number of the iteration that `iteration_in` would read, by names alone; None if it has none.

    Raises:
        CatalogError: there is no such iteration, or none is complete.
        StorageError: the storage does not answer.
    """
    if holds_iterations(names):
        return _choose(location, names, step)[0]
    return parse_iteration(location.name) if is_iteration(names) else None


def holds_iterations(names: Sequence[str]) -> bool:
    """True if names are those of a directory with iterations."""
    return any(parse_iteration(name) is not None for name in names)


def is_iteration(names: Sequence[str]) -> bool:
    """True if names are those of one iteration's directory."""
    if any(map(is_index_name, names)):  # Hugging Face's form needs neither tracker nor metadata
        return False
    return any(map(parse_tensor_file, names)) or {METADATA_NAME, COMMON_NAME} <= set(names)


def joint_files(iteration: Iteration) -> dict[int, Location]:
    """Return rank -> its files in the directory, under a joint name; without ranks that lack one."""
    return {
        rank: iteration.location.child(joined_files(names))
        for rank, names in iteration.files.items()
        if not iteration.missing_from(rank)
    }


def list_iterations(names: Sequence[str]) -> list[int]:
    """Return the numbers of the iterations in a directory, ascending."""
    return sorted(number for number in map(parse_iteration, names) if number is not None)


def iterations_beside(iteration: Iteration) -> list[int]:
    """Return the numbers of all iterations that its checkpoint has, ascending; none if it was named itself."""
    is_named = iteration.url == str(iteration.location)
    return [] if is_named else list_iterations(names_in(iteration.location.parent))


def read_iteration(location: Location, names: Sequence[str], step: str = "") -> Iteration:
    """Read the iteration in a directory with these names."""
    number = parse_iteration(location.name)
    check_asked(location, "iteration", number, step)
    problem = incomplete(names)
    if problem:
        raise CatalogError(f"{location}: {problem}: it was not saved completely. Name another iteration")
    metadata = None
    if METADATA_NAME in names:
        file = location.child(METADATA_NAME)
        metadata = _read_metadata(file)
    iteration = Iteration(str(location), location, number, metadata, tuple(names))
    return _with_notes(iteration)


def incomplete(names: Sequence[str]) -> str:
    """Return what a directory with these names lacks to be a complete iteration; empty if nothing, by its names."""
    if METADATA_NAME in names:
        return "" if COMMON_NAME in names else f"it has no {COMMON_NAME}"
    files = [name for name in map(parse_tensor_file, names) if name is not None]
    if not files:
        return "it holds no files of tensors"
    count = max(name.count for name in files)
    if count > 1:
        return f"it has no {METADATA_NAME}, but by their names its files are of {count} ranks"
    kinds = [name.kind for name in files]
    if len(kinds) > len(set(kinds)):
        return f"it has several files of one kind: {listed([name.name for name in files], _MAX_LISTED)}"
    return "" if COMMON_NAME in names else f"it has no {COMMON_NAME}"


def _choose(root: Location, names: Sequence[str], step: str) -> tuple[int, tuple[str, ...]]:
    """The number of the iteration to read, and notes on the choice."""
    directories = {number: iteration_name(number) for number in list_iterations(names)}
    steps = NumberedSteps(root, directories, lambda directory: incomplete(names_in(directory)), TRACKER.word)
    return choose_step(steps, step, TRACKER)


def _of_number(root: Location, number: int, notes: tuple[str, ...]) -> Iteration:
    location = _directory(root, number)
    iteration = read_iteration(location, names_in(location))
    return replace(iteration, url=str(root), notes=(*notes, *iteration.notes))


def _directory(root: Location, number: int) -> Location:
    return root.child(iteration_name(number))


def _with_notes(iteration: Iteration) -> Iteration:
    notes = []
    if iteration.missing_kinds:
        notes.append("the optimizer's files were not saved, or are not there: its parameters are missing")
    known = {METADATA_NAME, COMMON_NAME, STATE_DIRECTORY, *(name for each in iteration.files.values() for name in each)}
    beside = [name.name for name in iteration.tensor_files if name.name not in known]
    if beside:
        notes.append(
            f"{counted(len(beside), 'file')} that {METADATA_NAME} does not list, so ignored: "
            f"{listed(beside, _MAX_LISTED)}"
        )
    return replace(iteration, notes=tuple(notes))


def _read_metadata(location: Location) -> "Metadata":
    from reshard.core.layouts.checkpoint2.metadata import parse_metadata

    try:
        return parse_metadata(read_small_file(location, MAX_METADATA_BYTES), str(location))
    except StorageError as error:
        if error.transient:
            raise
        raise CatalogError(error.marked) from error
