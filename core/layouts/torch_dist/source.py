"""A `torch_dist` checkpoint of Megatron-Core as a source."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.dcp.source import DcpSteps, FoundDcp, found_dcp
from reshard.core.layouts.megatron.args import model_numbers
from reshard.core.layouts.megatron.names import TRACKER, parse_iteration
from reshard.core.layouts.place import Place, PlaceKind, directory_at
from reshard.core.layouts.source_layout import CatalogOptions, Document, ModelFacts, SourceLayout, TrackedSteps
from reshard.core.layouts.torch_dist.checkpoint import (
    is_torch_dist,
    list_torch_dist_steps,
    missing_from,
    number_in,
    read_torch_dist,
    torch_dist_in,
)
from reshard.core.layouts.torch_dist.names import COMMON_NAME, CONFIG_NAME
from reshard.core.layouts.torch_dist.unstacking import unmappable
from reshard.core.layouts.tracker import Tracker
from reshard.core.storage.urls import Location


class FoundTorchDist(FoundDcp):
    """A `torch_dist` checkpoint that was found."""

    preset_settings: ClassVar[Mapping[str, str]] = {"names": "megatron"}
    title = "torch_dist checkpoint"
    no_steps = "is one checkpoint of Megatron. Name the directory that training saves all into"

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Open its files, and compare each tensor's header with the metadata."""
        from reshard.core.layouts.torch_dist.master_weights import misnamed_state

        catalog = super().catalog(options)
        unconvertible = misnamed_state(self.checkpoint, catalog) | unmappable(self.checkpoint.metadata.tensors)
        return replace(catalog, unconvertible=unconvertible)

    def model_facts(self, catalog: CheckpointCatalog) -> ModelFacts:
        """What the arguments of its training say."""
        from reshard.core.layouts.torch_dist.common import args_beside

        args = args_beside(catalog)
        return ModelFacts() if args is None else ModelFacts(model_numbers(args), args.row_multiple)

    def describe(self) -> Document:
        """Describe it by its metadata; its files are not opened."""
        return {**super().describe(), "kind": self.title}


class TorchDistSteps(DcpSteps):
    """The steps of a training with Megatron in a directory; `metadata.json` is written last."""

    tracker: ClassVar[Tracker | None] = TRACKER

    def missing_from(self, names: Sequence[str]) -> list[str]:
        """Return the files that a step with these names lacks to be complete."""
        return missing_from(names)

    def read(self, directory: Location, names: Sequence[str]) -> DcpCheckpoint:
        """Read a step with these names."""
        return read_torch_dist(directory, names)


class TorchDistSource(SourceLayout):
    """Megatron-Core's `torch_dist`, as a source."""

    name = "torch_dist"

    def recognize(self, place: Place, step: str) -> FoundTorchDist | None:
        """Return the checkpoint in a directory, or the one that its metadata names."""
        place = _directory(place)
        checkpoint = torch_dist_in(place.location, place.names, step)
        if checkpoint is None:
            return None
        return found_dcp(FoundTorchDist, checkpoint, (COMMON_NAME, CONFIG_NAME))

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the iteration's number."""
        place = _directory(place)
        return number_in(place.location, place.names, step)

    def holds(self, names: Sequence[str]) -> bool:
        """True for files of `torch_dist`, complete or not."""
        return is_torch_dist(names)

    def find_steps(self, place: Place) -> TorchDistSteps | None:
        """Return the steps in a directory."""
        steps = list_torch_dist_steps(place.location, place.names)
        return TorchDistSteps(place.location, steps) if steps else None

    def step_of(self, name: str) -> Step | None:
        """Return the step in `iter_0000040`."""
        number = parse_iteration(name)
        return None if number is None else Step(NO_EPOCH, number)

    def tracked_steps(self, root: Location, names: Sequence[str]) -> TrackedSteps | None:
        """Return the iterations, and what reads the tracker."""
        directories = list_torch_dist_steps(root, names)
        if not directories:
            return None
        return TrackedSteps(root, directories, TRACKER)


def _directory(place: Place) -> Place:
    """The directory of metadata that is named, if it is of this layout; else the place itself."""
    if place.kind is PlaceKind.FILE and place.location.name in (DCP_METADATA_NAME, CONFIG_NAME):
        directory = directory_at(place.location.parent)
        return directory if is_torch_dist(directory.names) else place
    return place


SOURCE = TorchDistSource()
