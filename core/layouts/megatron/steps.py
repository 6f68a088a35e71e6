"""The iterations that a training saves into one directory."""

from collections.abc import Iterator, Mapping

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.megatron.checkpoint import open_iteration
from reshard.core.layouts.megatron.iterations import Iteration, incomplete
from reshard.core.layouts.megatron.names import TRACKER
from reshard.core.layouts.placed_shards import part_locations
from reshard.core.layouts.seen_steps import SeenStep, StepObserver
from reshard.core.layouts.tracker import read_tracker
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location


class IterationSteps(Record):
    """The iterations in a directory, number -> name; the tracker names the newest that is complete."""

    root: Location
    iterations: Mapping[int, str]

    @property
    def source(self) -> str:
        """The directory's URL."""
        return str(self.root)

    def look(self, observer: StepObserver) -> Iterator[SeenStep]:
        """Yield the iterations, newest first."""
        tracked = read_tracker(self.root, TRACKER)
        for number in sorted(self.iterations, reverse=True):
            step, directory = Step(NO_EPOCH, number), self.root.child(self.iterations[number])
            if tracked is None or number > tracked:
                yield observer.growing(directory, step, f"{TRACKER.name} does not name it yet")
                continue
            problem = incomplete(directory)
            if problem:
                yield SeenStep(step, {}, problem)
                continue
            try:
                files = self._files(directory, number)
            except (CatalogError, CheckpointError) as error:
                yield SeenStep(step, {}, str(error))
                continue
            yield observer.finished(step, self.source, files, [])

    def _files(self, directory: Location, number: int) -> dict[int, Location]:
        """The file of each rank, as a conversion counts them."""
        opened = open_iteration(Iteration(self.source, directory, number, tuple(names_in(directory))))
        return part_locations(opened.files, directory)
