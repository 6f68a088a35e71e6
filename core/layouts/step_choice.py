"""Which step of a training is read: the one that is asked for, that its tracker names, or the newest complete one."""

from collections.abc import Callable, Mapping

from reshard.core.errors import CatalogError
from reshard.core.layouts.tracker import Tracker, read_tracker
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import Location
from reshard.core.text.options import option, source_option, spelled

_MAX_LISTED = 6


class NumberedSteps(Record):
    """The steps in the directory of a training.

    Attributes:
        directories: number of a step -> its directory's name, ascending.
        incomplete: what a step's directory lacks, by names alone; empty if nothing.
        word: what a step is called.
    """

    root: Location
    directories: Mapping[int, str]
    incomplete: Callable[[Location], str]
    word: str = "step"

    @property
    def newest_first(self) -> list[int]:
        """The numbers, newest first."""
        return sorted(self.directories, reverse=True)

    @property
    def there(self) -> str:
        """The numbers for messages, newest first."""
        return listed([*map(str, self.newest_first)], _MAX_LISTED) or "none with a number"

    def asked(self, step: str) -> int:
        """Return the number of the step that is asked for.

        Raises:
            CatalogError: there is no such step.
        """
        if not step.isdigit() or int(step) not in self.directories:
            raise CatalogError(f"{self.root}: has no {self.word} {step}; it has {self.there}")
        return int(step)

    def newest_complete(self, tracker: str) -> tuple[int, tuple[str, ...]]:
        """Return the number of the newest complete step, and notes on those that are passed over.

        Args:
            tracker: what would name the step, and is not there.

        Raises:
            CatalogError: none is complete.
            StorageError: the storage does not answer.
        """
        notes: list[str] = []
        for number in self.newest_first:
            problem = self._problem(number)
            if not problem:
                note = f"there is no {tracker}: {self.word} {number} is the newest complete one"
                return number, (note, *notes)
            notes.append(f"{self.word} {number} is skipped: {problem}")
        raise CatalogError(f"{self.root}: no {self.word} is complete: {'; '.join(notes[:_MAX_LISTED])}")

    def newer_notes(self, tracked: int, named: str) -> tuple[str, ...]:
        """Return notes on the steps that are newer than the one that is read, `named` saying what names that."""
        return tuple(self._newer_note(number, named) for number in self.directories if number > tracked)

    def _newer_note(self, number: int, named: str) -> str:
        problem = self._problem(number)
        why = f"it is incomplete: {problem}" if problem else f"{named}; {option('step', str(number))} reads it"
        return spelled(f"{self.word} {number} is newer, but skipped: {why}")

    def _problem(self, number: int) -> str:
        return self.incomplete(self.root.child(self.directories[number]))


def check_asked(location: Location, kind: str, number: int | None, step: str) -> None:
    """Check that a directory, which is one step itself, is the step that is asked for; `kind` is the layout's word.

    Raises:
        CatalogError: another step is asked for, or the directory's own is not known.
    """
    if step and step != str(number):
        found = f"its {kind} is not known" if number is None else f"is {kind} {number}, not {step}"
        raise CatalogError(f"{location}: {found}: leave out {source_option('step')}")


def choose_step(steps: NumberedSteps, step: str, tracker: Tracker) -> tuple[int, tuple[str, ...]]:
    """Return the number of the step to read, and notes on the choice.

    Args:
        step: the number that is asked for; empty: the one that the tracker names, or else the newest complete one.

    Raises:
        CatalogError: there is no such step, or none is complete.
        StorageError: the storage does not answer.
    """
    if step:
        return steps.asked(step), ()
    tracked = read_tracker(steps.root, tracker)
    if tracked is None:
        return steps.newest_complete(tracker.name)
    if tracked not in steps.directories:
        raise CatalogError(
            f"{steps.root}: {tracker.name} names {steps.word} {tracked}, which is not there; there are {steps.there}: "
            f"name one with {source_option('step')}"
        )
    return tracked, steps.newer_notes(tracked, f"the tracker names {tracker.text_of(tracked)}")
