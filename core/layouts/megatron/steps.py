"""The iterations that a training saves into one directory."""

from typing import ClassVar

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.file_names import Step
from reshard.core.layouts.megatron.checkpoint import open_iteration
from reshard.core.layouts.megatron.iterations import Iteration, incomplete
from reshard.core.layouts.megatron.names import TRACKER
from reshard.core.layouts.placed_shards import part_locations
from reshard.core.layouts.seen_steps import DirectorySteps, SeenStep, StepObserver
from reshard.core.layouts.tracker import Tracker
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location


class IterationSteps(DirectorySteps):
    """The iterations in a directory; the tracker names the newest that is complete."""

    tracker: ClassVar[Tracker | None] = TRACKER

    def see(self, observer: StepObserver, step: Step, directory: Location, named: int | None) -> SeenStep:
        """Return an iteration at one look."""
        if named is None or step.step > named:
            return self.unnamed(observer, step, directory)
        if problem := incomplete(directory):
            return SeenStep(step, {}, problem)
        try:
            files = self._files(directory, step.step)
        except (CatalogError, CheckpointError) as error:
            return SeenStep(step, {}, str(error))
        return observer.finished(step, self.source, files, [])

    def _files(self, directory: Location, number: int) -> dict[int, Location]:
        """The file of each rank, as a conversion counts them."""
        opened = open_iteration(Iteration(self.source, directory, number, tuple(names_in(directory))))
        return part_locations(opened.files, directory)
