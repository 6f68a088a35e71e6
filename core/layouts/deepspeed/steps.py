"""The steps that a training saves into one directory, each in the directory of its tag."""

from collections.abc import Iterator

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.deepspeed.checkpoint import open_tag
from reshard.core.layouts.deepspeed.names import LATEST_NAME, is_tag
from reshard.core.layouts.deepspeed.tags import Tag, Tags
from reshard.core.layouts.placed_shards import part_locations
from reshard.core.layouts.seen_steps import SeenStep, StepObserver
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location


class TagSteps(Record):
    """The tags in a directory that have a step; `latest` names the newest that is complete."""

    tags: Tags

    @property
    def source(self) -> str:
        """The directory's URL."""
        return str(self.tags.root)

    def look(self, observer: StepObserver) -> Iterator[SeenStep]:
        """Yield the steps, newest first."""
        complete = self.tags.newest_complete
        for number in self.tags.newest_first:
            step, directory = Step(NO_EPOCH, number), self.tags.root.child(self.tags.numbered[number])
            if self.tags.latest is None or (complete is not None and number > complete):
                yield observer.growing(directory, step, f"{LATEST_NAME} does not name it yet")
                continue
            try:
                files = self._files(directory, number)
            except (CatalogError, CheckpointError) as error:
                yield SeenStep(step, {}, str(error))
                continue
            yield observer.finished(step, self.source, files, [])

    def _files(self, directory: Location, number: int) -> dict[int, Location]:
        """The file of each rank, as a conversion counts them."""
        names = tuple(names_in(directory))
        if not is_tag(names):
            raise CatalogError(f"{directory}: has no file of a rank")
        opened = open_tag(Tag(self.source, directory, number, names))
        return part_locations(opened.files, directory)
