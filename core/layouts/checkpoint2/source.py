"""An iteration of a Checkpoint 2.0 as a source."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, StrategyError
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.checkpoint2.common import common_beside
from reshard.core.layouts.checkpoint2.iterations import (
    Iteration,
    holds_iterations,
    iteration_in,
    iterations_beside,
    joint_files,
    list_iterations,
    number_in,
    read_iteration,
)
from reshard.core.layouts.checkpoint2.names import (
    COMMON_NAME,
    METADATA_NAME,
    TRACKER,
    iteration_name,
    parse_iteration,
    parse_tensor_file,
)
from reshard.core.layouts.checkpoint2.strategy import read_tracked_strategy
from reshard.core.layouts.place import Place, PlaceKind, directory_at, lacks_manifest, whole_file
from reshard.core.layouts.seen_steps import DirectorySteps, SeenStep, StepObserver
from reshard.core.layouts.source_layout import (
    CatalogOptions,
    Document,
    FoundCheckpoint,
    ListedParameters,
    SourceLayout,
    TrackedSteps,
)
from reshard.core.layouts.state_numbers import Number
from reshard.core.layouts.tracker import Tracker
from reshard.core.storage.links import check_links
from reshard.core.storage.listing import names_in
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option

_TITLE = "Checkpoint 2.0"


class FoundIteration(FoundCheckpoint):
    """An iteration that was found; ranks that hold nothing have no files."""

    iteration: Iteration

    no_steps = "is one iteration. Name the directory that training saves all into"

    @property
    def strategy(self) -> Strategy | None:
        """The layouts in its metadata; None for a single card."""
        return self.iteration.strategy

    @property
    def strategy_refusal(self) -> str:
        """Its metadata is the only right one."""
        return (
            f"{self.url}: is a {_TITLE}: {METADATA_NAME} says how it is sharded, so leave out "
            f"{source_option('source_strategy')}"
        )

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse a choice of files."""
        if options.source_prefix:
            raise CatalogError(
                f"{self.url}: is a {_TITLE}, whose metadata names its files: leave out {option('source_prefix')}"
            )

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Open its files, and compare them with the metadata."""
        from reshard.core.layouts.checkpoint2.catalog import iteration_catalog

        return iteration_catalog(self.iteration, options)

    def listed_parameters(self, catalog: CheckpointCatalog) -> ListedParameters | None:
        """The parameters in its metadata; those of an optimizer that was not saved are in no file."""
        metadata = self.iteration.metadata
        if metadata is None:
            return None
        from reshard.core.layouts.checkpoint2.catalog import unheld_parameters

        return ListedParameters(metadata.origin, [*metadata.tensors], unheld_parameters(catalog, metadata))

    def other_steps(self, source_prefix: str, chosen: Step) -> list[Step]:
        """The iterations beside it."""
        return [Step(NO_EPOCH, number) for number in reversed(iterations_beside(self.iteration))]

    def describe(self) -> Document:
        """Describe it by its metadata and the names of its files, which are not opened."""
        from reshard.core.layouts.checkpoint2.description import describe_iteration

        return describe_iteration(self.iteration, self.ignored, unfinished=self.unfinished)


class IterationSteps(DirectorySteps):
    """The iterations in a directory: the tracker names the newest that is complete."""

    tracker: ClassVar[Tracker | None] = TRACKER

    def see(self, observer: StepObserver, step: Step, directory: Location, named: int | None) -> SeenStep:
        """Return an iteration at one look."""
        if named is None or step.step > named:
            return self.unnamed(observer, step, directory)
        try:
            iteration = read_iteration(directory, names_in(directory))
        except (CatalogError, StrategyError) as error:
            return SeenStep(step, {}, str(error))
        missing = [name for rank in iteration.files for name in iteration.missing_from(rank)]
        return observer.finished(step, self.source, joint_files(iteration), missing)


class Checkpoint2Source(SourceLayout):
    """MindFormers' Checkpoint 2.0, as a source."""

    name = "checkpoint2"

    def is_document(self, name: str) -> bool:
        """True for `metadata.json`."""
        return name == METADATA_NAME

    def whole_of(self, name: str) -> str:
        """A file of tensors alone may be a rank's slices."""
        return f"a {_TITLE}: name the directory of its iteration" if parse_tensor_file(name) else ""

    def recognize(self, place: Place, step: str) -> FoundIteration | None:
        """Return an iteration: the one of a directory or of its metadata, or the one of several that is meant."""
        place = self._directory(place)
        iteration = iteration_in(place.location, place.names, step)
        return None if iteration is None else _found(iteration)

    def holds(self, names: Sequence[str]) -> bool:
        """True for iterations, their files of tensors, and their metadata."""
        return METADATA_NAME in names or any(
            parse_iteration(name) is not None or parse_tensor_file(name) is not None for name in names
        )

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the iteration's number."""
        place = self._directory(place)
        return number_in(place.location, place.names, step)

    def _directory(self, place: Place) -> Place:
        is_metadata = place.kind is PlaceKind.FILE and self.is_document(place.location.name)
        return directory_at(place.location.parent) if is_metadata else place

    def find_steps(self, place: Place) -> IterationSteps | None:
        """Return the iterations in a directory."""
        if not holds_iterations(place.names):
            return None
        return IterationSteps(
            place.location, {number: iteration_name(number) for number in list_iterations(place.names)}
        )

    def step_of(self, name: str) -> Step | None:
        """Return the step in `iteration_00000040`."""
        number = parse_iteration(name)
        return None if number is None else Step(NO_EPOCH, number)

    def tracked_steps(self, root: Location, names: Sequence[str]) -> TrackedSteps | None:
        """Return the iterations, and what reads the tracker."""
        if not holds_iterations(names):
            return None
        directories = {number: iteration_name(number) for number in list_iterations(names)}
        return TrackedSteps(root, directories, TRACKER)

    def read_strategy(self, location: Location, names: Sequence[str] | None) -> Strategy | None:
        """Read the layouts in `metadata.json`, of the iteration that the tracker names if there are several."""
        return read_tracked_strategy(location, names)

    def numbers_beside(self, catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
        """Return the numbers in `common.json`."""
        return common_beside(catalog)


SOURCE = Checkpoint2Source()


def _found(iteration: Iteration) -> FoundIteration:
    listed = {name for names in iteration.files.values() for name in names}
    known = {METADATA_NAME, COMMON_NAME, STATE_DIRECTORY, *listed}
    files = joint_files(iteration)
    documents = [iteration.location.child(name) for name in (METADATA_NAME, COMMON_NAME)]
    check_links(iteration.location, [*documents, *files.values()])
    return FoundIteration(
        iteration.url,
        {rank: (whole_file(location),) for rank, location in files.items()},
        iteration,
        ignored=tuple(name for name in iteration.names if name not in known),
        unfinished=lacks_manifest(iteration.location, iteration.names),
    )
