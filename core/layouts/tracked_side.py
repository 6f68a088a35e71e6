"""Targets that are steps in one directory, in which a tracker names the one to load."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol

from reshard.core.errors import InputError
from reshard.core.layouts.iteration_option import IterationOptions, last_name
from reshard.core.layouts.options import own_options
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.tracker import Tracker, check_tracker, track
from reshard.core.storage.urls import Location
from reshard.core.text.options import option


class TrackedTarget(Protocol):
    """What a target's record says of its step; `tracked`: a tracker beside its directory is to name it."""

    @property
    def iteration(self) -> int:
        """The number of the step; 0 for the word that a tracker may have instead."""

    @property
    def tracked(self) -> bool:
        """True if the request names the directory of all steps."""


class TrackedSide(TargetSide):
    """What layouts with a tracker answer alike about their targets."""

    tracker: ClassVar[Tracker]

    @abstractmethod
    def directory_name(self, number: int) -> str:
        """Return the name of a step's directory."""

    @abstractmethod
    def number_in(self, name: str) -> int | None:
        """Return the number of the step whose directory has this name; None for other names."""

    def fill_in(self, request: Any) -> Mapping[str, str]:
        """Return the number of the step to write, 0 if nothing tells it, and the step of a source that has several.

        Raises:
            InputError: the target is named after another step than the one that is given.
            CatalogError: the source has no such step, or none that is complete.
            StorageError: the source cannot be listed.
        """
        from reshard.core.layouts.survey import find_number

        found = find_number(request.source, request.step)
        step = request.step if found is None else str(found)
        given = own_options(request, IterationOptions).iteration
        name = last_name(request.target)
        named = self.number_in(name)
        if given and named not in (None, int(given)):
            raise InputError(f"{option('iteration', given)}: the target is named {name}: leave it out")
        return {"step": step, "iteration": given or str((found or 0) if named is None else named)}

    def place(self, location: Location, value: TrackedTarget) -> Location:
        """Return the step's directory, in that of all steps if the tracker there is to name it."""
        return location.child(self.directory_name(value.iteration)) if value.tracked else location

    def check_place(self, final: Location, value: TrackedTarget) -> None:
        """Refuse a tracker that cannot be advanced, and one of another library, which would lose its own place."""
        if value.tracked:
            check_tracker(final.parent, self.tracker)

    def announce(self, final: Location, value: TrackedTarget) -> None:
        """Name the step in the tracker, unless that names a newer one."""
        if value.tracked:
            track(final.parent, value.iteration, self.tracker)

    def targets_in(self, names: Collection[str]) -> list[str]:
        """Return the names of steps' directories."""
        return sorted(name for name in names if self.number_in(name) is not None)
