"""The steps that a training saves into one directory, each in the directory of its tag."""

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.file_names import Step
from reshard.core.layouts.deepspeed.checkpoint import open_tag
from reshard.core.layouts.deepspeed.names import LATEST_NAME, is_tag, parse_tag
from reshard.core.layouts.deepspeed.tags import Tag
from reshard.core.layouts.placed_shards import part_locations
from reshard.core.layouts.seen_steps import DirectorySteps, SeenStep, StepObserver
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location


class TagSteps(DirectorySteps):
    """The tags in a directory that have a step; `latest`, if it is there, names the newest that is complete."""

    latest: str | None

    @property
    def tracker_name(self) -> str:
        """The name of what names a tag."""
        return LATEST_NAME

    def named(self) -> int | None:
        """Return the step of the tag that `latest` names; None also if that is of another kind."""
        return None if self.latest is None else parse_tag(self.latest)

    def see(self, observer: StepObserver, step: Step, directory: Location, named: int | None) -> SeenStep:
        """Return a step at one look."""
        if self.latest is None or (named is not None and step.step > named):
            return self.unnamed(observer, step, directory)
        try:
            files = self._files(directory, step.step)
        except (CatalogError, CheckpointError) as error:
            return SeenStep(step, {}, str(error))
        return observer.finished(step, self.source, files, [])

    def _files(self, directory: Location, number: int) -> dict[int, Location]:
        """The file of each rank, as a conversion counts them."""
        names = tuple(names_in(directory))
        if not is_tag(names):
            raise CatalogError(f"{directory}: has no file of a rank")
        opened = open_tag(Tag(self.source, directory, number, names))
        return part_locations(opened.files, directory)
