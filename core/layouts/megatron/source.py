"""An iteration of Megatron-Core's training, or of MindSpeed's, as a source."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.megatron.args import model_numbers
from reshard.core.layouts.megatron.iterations import (
    Iteration,
    choose_iteration,
    iteration_in,
    list_iterations,
)
from reshard.core.layouts.megatron.names import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    TRACKER_NAME,
    is_iteration,
    is_rank_folder,
    parse_iteration,
    read_tracker,
)
from reshard.core.layouts.place import Place, PlaceKind, lacks_manifest, whole_file
from reshard.core.layouts.source_layout import (
    CatalogOptions,
    Document,
    FoundCheckpoint,
    ListedParameters,
    ModelFacts,
    SelfEvident,
    SourceLayout,
    TrackedSteps,
)
from reshard.core.layouts.state_numbers import Number
from reshard.core.storage.links import check_links
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option

if TYPE_CHECKING:
    from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint
    from reshard.core.layouts.megatron.steps import IterationSteps

_TITLE = "Megatron checkpoint"


class FoundIteration(FoundCheckpoint):
    """An iteration that was found; its files are opened when its sharding is asked for."""

    iteration: Iteration

    preset_settings: ClassVar[Mapping[str, str]] = {"names": "megatron"}
    no_steps = "is one iteration. Name the directory that training saves all into"

    @cached_property
    def opened(self) -> "OpenedCheckpoint":
        """Its files, after their headers were read."""
        from reshard.core.layouts.megatron.checkpoint import open_iteration

        return open_iteration(self.iteration)

    @property
    def strategy(self) -> Strategy:
        """Every tensor's boxes over the parts of its files."""
        return self.opened.strategy

    @property
    def strategy_refusal(self) -> str:
        """Its arguments are the only right ones."""
        return (
            f"{self.url}: is a {_TITLE}, whose files say how it is sharded, so leave out "
            f"{source_option('source_strategy')}"
        )

    @property
    def self_evident(self) -> SelfEvident:
        """Its arguments and its files say all."""
        why = "the arguments in its files say how tensors are sharded, and names and shapes agree"
        return SelfEvident(_TITLE, len(self.opened.files), why)

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse options about ranks and prefixes."""
        if options.about_ranks:
            raise CatalogError(
                f"{self.url}: is a {_TITLE}, which says itself what each file holds, and is never encrypted: leave out "
                f"{' and '.join(options.about_ranks)}"
            )
        if options.source_prefix:
            raise CatalogError(
                f"{self.url}: is a {_TITLE}, whose files have fixed names: leave out {option('source_prefix')}"
            )
        if options.damage.faulty:
            raise CatalogError(
                f"{self.url}: is a {_TITLE}, whose files are not numbered: leave out {option('fault_ranks')}, and move "
                "away what is faulty"
            )

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Compare what its files hold in common."""
        from reshard.core.layouts.megatron.catalog import megatron_catalog

        return megatron_catalog(self.iteration, self.opened, options)

    def model_facts(self, catalog: CheckpointCatalog) -> ModelFacts:
        """What the arguments of its training say."""
        args = self.opened.args
        return ModelFacts(model_numbers(args), args.row_multiple)

    def listed_parameters(self, catalog: CheckpointCatalog) -> ListedParameters | None:
        """The states of an optimizer that is not known by names."""
        opened = self.opened
        if not opened.state_problem:
            return None
        return ListedParameters(self.url, opened.names, opened.states, opened.state_problem)

    def other_steps(self, source_prefix: str, chosen: Step) -> list[Step]:
        """The iterations beside it."""
        return [Step(NO_EPOCH, number) for number in reversed(self.iteration.numbers)]

    def describe(self) -> Document:
        """Describe it by the headers of its files."""
        from reshard.core.layouts.megatron.description import describe_iteration

        return describe_iteration(self.iteration, self.opened, self.ignored, unfinished=self.unfinished)


class MegatronSource(SourceLayout):
    """Checkpoints of one file for each rank (`--ckpt-format torch`), as a source."""

    name = "megatron"

    def recognize(self, place: Place, step: str) -> FoundIteration | None:
        """Return an iteration: the one of a directory, or the one of several that is meant."""
        if place.kind is PlaceKind.FILE:
            if place.location.name in (MODEL_NAME, OPTIMIZER_NAME):
                raise _part(place.location, place.location.parent.parent)
            return None
        if is_rank_folder(place.location.name) and MODEL_NAME in place.names:
            raise _part(place.location, place.location.parent)
        iteration = iteration_in(place.location, place.names, step)
        return None if iteration is None else _found(iteration)

    def holds(self, names: Sequence[str]) -> bool:
        """True for folders and files of ranks."""
        return is_iteration(names) or MODEL_NAME in names

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the iteration's number."""
        if is_iteration(place.names):
            return parse_iteration(place.location.name)
        iterations = list_iterations(place.location, place.names)
        return choose_iteration(place.location, iterations, step)[0] if iterations else None

    def find_steps(self, place: Place) -> "IterationSteps | None":
        """Return the iterations in a directory."""
        from reshard.core.layouts.megatron.steps import IterationSteps

        iterations = {} if is_iteration(place.names) else list_iterations(place.location, place.names)
        return IterationSteps(place.location, iterations) if iterations else None

    def tracked_steps(self, root: Location, names: Sequence[str]) -> TrackedSteps | None:
        """Return the iterations, and what reads the tracker."""
        iterations: Mapping[int, str] = list_iterations(root, names)
        if not iterations:
            return None
        return TrackedSteps(iterations, "iteration", TRACKER_NAME, partial(read_tracker, root))

    def numbers_beside(self, catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
        """Return the iteration that its files name, which is the training's step; a release is none."""
        location = parse_url(next(iter(catalog.records.values())).location)
        is_own = location.name in (MODEL_NAME, OPTIMIZER_NAME) and is_rank_folder(location.parent.name)
        return {"global_step": int(catalog.step)} if is_own and catalog.step and catalog.step != "0" else None


SOURCE = MegatronSource()


def _part(location: Location, whole: Location) -> CatalogError:
    return CatalogError(f"{location}: is a part of a {_TITLE}: name the directory of its iteration, {whole}")


def _found(iteration: Iteration) -> FoundIteration:
    files = [iteration.location.child(folder, MODEL_NAME) for folder in iteration.folders]
    check_links(iteration.location, [*files, *(file.parent.child(OPTIMIZER_NAME) for file in files)])
    known = {STATE_DIRECTORY, *iteration.folders}
    return FoundIteration(
        iteration.url,
        {rank: (whole_file(file),) for rank, file in enumerate(files)},
        iteration,
        ignored=tuple(name for name in iteration.names if name not in known),
        unfinished=lacks_manifest(iteration.location, iteration.names),
    )
