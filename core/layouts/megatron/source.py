"""An iteration of Megatron-Core's training, or of MindSpeed's, as a source."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
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
    TRACKER,
    is_iteration,
    is_rank_folder,
    parse_iteration,
)
from reshard.core.layouts.place import Place, PlaceKind, lacks_manifest, whole_file
from reshard.core.layouts.placed_source import FoundShards
from reshard.core.layouts.source_layout import (
    CatalogOptions,
    Document,
    ModelFacts,
    SourceLayout,
    TrackedSteps,
)
from reshard.core.layouts.state_numbers import Number
from reshard.core.storage.links import check_links
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location, parse_url

if TYPE_CHECKING:
    from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint
    from reshard.core.layouts.megatron.steps import IterationSteps

_TITLE = "Megatron checkpoint"


class FoundIteration(FoundShards):
    """An iteration that was found; its files are opened when its sharding is asked for."""

    iteration: Iteration

    title = _TITLE
    evidence = "the arguments in its files say how tensors are sharded, and names and shapes agree"
    preset_settings: ClassVar[Mapping[str, str]] = {"names": "megatron"}
    no_steps = "is one iteration. Name the directory that training saves all into"

    @cached_property
    def opened(self) -> "OpenedCheckpoint":
        """Its files, after their headers were read."""
        from reshard.core.layouts.megatron.checkpoint import open_iteration

        return open_iteration(self.iteration)

    @property
    def numbers(self) -> Sequence[int]:
        """The iterations of the training."""
        return self.iteration.numbers

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Compare what its files hold in common."""
        from reshard.core.layouts.megatron.catalog import megatron_catalog

        return megatron_catalog(self.iteration, self.opened, options)

    def model_facts(self, catalog: CheckpointCatalog) -> ModelFacts:
        """What the arguments of its training say."""
        args = self.opened.args
        return ModelFacts(model_numbers(args), args.row_multiple)

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
        return TrackedSteps(root, iterations, TRACKER) if iterations else None

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
