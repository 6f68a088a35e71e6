"""The model of an FSDP training, in one file for each rank, as a source."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from reshard.core.changes.model_config import CONFIG_NAME as MODEL_CONFIG
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.layouts.fsdp.names import (
    CONFIG_NAME,
    HUGGING_FACE_NAME,
    LORA_NAME,
    TRACKER,
    FileKind,
    is_model,
    parse_rank_name,
    parse_step,
    rank_names,
)
from reshard.core.layouts.fsdp.places import SavedModel, list_steps, model_in, models_in, step_to_read
from reshard.core.layouts.place import Place, PlaceKind, lacks_manifest, whole_file
from reshard.core.layouts.placed_source import FoundShards
from reshard.core.layouts.source_layout import (
    CatalogOptions,
    Document,
    SourceLayout,
    TrackedSteps,
)
from reshard.core.layouts.state_numbers import OPTIMIZER_STEP, Number
from reshard.core.storage.links import check_links
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location, parse_url

if TYPE_CHECKING:
    from reshard.core.layouts.fsdp.checkpoint import OpenedCheckpoint
    from reshard.core.layouts.fsdp.steps import FsdpSteps

_TITLE = "FSDP checkpoint"


class FoundFsdp(FoundShards):
    """A model that was found; its ranks' files are opened when its sharding is asked for."""

    saved: SavedModel

    title = _TITLE
    article = "an"
    evidence = "its tensors say how they are sharded, and their shapes agree"
    no_steps = "is one step. Name the directory that training saves all into"

    @cached_property
    def opened(self) -> "OpenedCheckpoint":
        """Its files, after their headers were read."""
        from reshard.core.layouts.fsdp.checkpoint import open_checkpoint

        return open_checkpoint(self.saved)

    @property
    def numbers(self) -> Sequence[int]:
        """The steps of the training."""
        return self.saved.numbers

    @cached_property
    def model_directory(self) -> Location | None:
        """The directory beside the ranks' files with the model's configuration and tokenizer."""
        directory = self.saved.location.child(HUGGING_FACE_NAME)
        there = HUGGING_FACE_NAME in self.saved.names and MODEL_CONFIG in names_if_directory(directory)
        return directory if there else None

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Compare what its files hold in common."""
        from reshard.core.layouts.fsdp.catalog import fsdp_catalog

        return fsdp_catalog(self.saved, self.opened, options)

    def describe(self) -> Document:
        """Describe it by the headers of its files."""
        from reshard.core.layouts.fsdp.description import describe_fsdp

        return describe_fsdp(self.saved, self.opened, self.ignored, unfinished=self.unfinished)


class FsdpSource(SourceLayout):
    """Trainings with FSDP whose ranks save a file each, as verl's do, as a source."""

    name = "fsdp"

    def recognize(self, place: Place, step: str) -> FoundFsdp | None:
        """Return a model: that of a directory, of a step, or of one of a training's steps."""
        if place.kind is PlaceKind.FILE:
            if parse_rank_name(place.location.name):
                raise CatalogError(
                    f"{place.location}: is a part of an {_TITLE}: name the directory of all its ranks, "
                    f"{place.location.parent}"
                )
            return None
        saved = model_in(place.location, place.names, step)
        return None if saved is None else _found(saved)

    def holds(self, names: Sequence[str]) -> bool:
        """True for files of ranks."""
        return is_model(names)

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the step's number."""
        if place.kind is not PlaceKind.DIRECTORY:
            return None
        if is_model(place.names) or models_in(place.location, place.names):
            own = parse_step(place.location.name)
            return parse_step(place.location.parent.name) if own is None else own
        steps = list_steps(place.location, place.names)
        return step_to_read(place.location, steps, step)[0] if steps else None

    def find_steps(self, place: Place) -> "FsdpSteps | None":
        """Return the steps in a directory."""
        from reshard.core.layouts.fsdp.steps import FsdpSteps

        steps = {} if is_model(place.names) else list_steps(place.location, place.names)
        return FsdpSteps(place.location, steps) if steps else None

    def tracked_steps(self, root: Location, names: Sequence[str]) -> TrackedSteps | None:
        """Return the steps, and what reads the tracker."""
        steps: Mapping[int, str] = list_steps(root, names)
        return TrackedSteps(root, steps, TRACKER) if steps else None

    def numbers_beside(self, catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
        """Return the step that a directory's name says, and that of the optimizer."""
        locations = [parse_url(record.location) for record in catalog.records.values()]
        names = {location: name for location in locations if (name := parse_rank_name(location.name)) is not None}
        step = {"global_step": int(catalog.step)} if names and catalog.step else {}
        optimizer = next((each for each, name in names.items() if name.kind is FileKind.OPTIMIZER), None)
        if optimizer is None:
            return step or None
        from reshard.core.layouts.fsdp.optimizer import read_optimizer_file

        return {**step, OPTIMIZER_STEP: read_optimizer_file(optimizer, names[optimizer], {}).step}


SOURCE = FsdpSource()


def _found(saved: SavedModel) -> FoundFsdp:
    there = rank_names(saved.names)
    files = {parsed.rank: name for name, parsed in there.items() if parsed.kind is FileKind.MODEL}
    own = [*there, *(name for name in (CONFIG_NAME, LORA_NAME, HUGGING_FACE_NAME) if name in saved.names)]
    check_links(saved.location, [saved.location.child(name) for name in own])
    known = {STATE_DIRECTORY, *own}
    return FoundFsdp(
        saved.url,
        {rank: (whole_file(saved.location.child(files[rank])),) for rank in sorted(files)},
        saved,
        ignored=tuple(name for name in saved.names if name not in known),
        unfinished=lacks_manifest(saved.location, saved.names),
    )
