"""The steps that a training with FSDP saves into one directory.

The tracker is written last; but a training that saves asynchronously may name a step in it whose files still grow, or
have none. So files are read to see whether they are whole, and without a tracker they have to settle, too.
"""

from typing import ClassVar

from reshard.core.errors import CatalogError, CheckpointError, StrategyError
from reshard.core.files.file_names import Step
from reshard.core.layouts.fsdp.checkpoint import open_checkpoint
from reshard.core.layouts.fsdp.names import TRACKER
from reshard.core.layouts.fsdp.places import incomplete, model_in
from reshard.core.layouts.lost_files import lost_text
from reshard.core.layouts.placed_shards import part_locations
from reshard.core.layouts.seen_steps import DirectorySteps, SeenStep, StepObserver
from reshard.core.layouts.tracker import Tracker
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location


class FsdpSteps(DirectorySteps):
    """The steps in a directory."""

    tracker: ClassVar[Tracker | None] = TRACKER

    def see(self, observer: StepObserver, step: Step, directory: Location, named: int | None) -> SeenStep:
        """Return a step at one look."""
        if named is not None and step.step > named:
            return self.unnamed(observer, step, directory)
        try:
            problem, files = incomplete(directory), dict[int, Location]()
            if not problem:
                files = _files(directory)
        except (CatalogError, CheckpointError, StrategyError) as error:
            problem = str(error)
        if named is None and not problem:
            seen = observer.growing(directory, step, "its files have just changed")
            problem = seen.incomplete if seen.quiet_seconds < observer.options.settle_seconds else ""
        if problem:
            return observer.growing(directory, step, problem)
        return observer.finished(step, self.source, files, [])


def _files(directory: Location) -> dict[int, Location]:
    """The file of each rank, as a conversion counts them.

    Raises:
        CatalogError: one is missing or damaged, or they contradict each other.
    """
    saved = model_in(directory, names_in(directory))
    if saved is None:
        raise CatalogError(f"{directory}: has no files of ranks")
    opened = open_checkpoint(saved)
    if lost := {**opened.lost, **opened.optimizer.lost}:
        raise CatalogError(lost_text(opened.origin, lost))
    return part_locations(opened.files, saved.location)
