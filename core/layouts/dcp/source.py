"""A checkpoint of DCP as a source."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, StrategyError
from reshard.core.files.file_names import Step
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint, dcp_in, read_dcp
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, is_dcp
from reshard.core.layouts.dcp.steps import list_dcp_steps
from reshard.core.layouts.place import Place, PlaceKind, directory_at, lacks_manifest, whole_file
from reshard.core.layouts.seen_steps import DirectorySteps, SeenStep, StepObserver
from reshard.core.layouts.source_layout import CatalogOptions, Document, FoundCheckpoint, SelfEvident, SourceLayout
from reshard.core.runtime.wording import listed
from reshard.core.storage.links import check_links
from reshard.core.storage.listing import names_in
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option


class FoundDcp(FoundCheckpoint):
    """A checkpoint of DCP that was found; `checkpoint` is what its metadata says."""

    checkpoint: DcpCheckpoint

    title: ClassVar[str] = "DCP checkpoint"
    no_steps = "is one DCP checkpoint, and has no steps: convert it with `reshard convert`"

    @property
    def strategy(self) -> Strategy:
        """Every tensor's boxes over the files."""
        return self.checkpoint.strategy

    @property
    def strategy_refusal(self) -> str:
        """Its metadata is the only right one."""
        return (
            f"{self.url}: is a {self.title}: {DCP_METADATA_NAME} says how it is sharded, so leave out "
            f"{source_option('source_strategy')}"
        )

    @property
    def self_evident(self) -> SelfEvident:
        """Its metadata and its files say all."""
        why = "its metadata says how tensors are sharded, and its files agree"
        return SelfEvident(self.title.removesuffix(" checkpoint"), len(self.checkpoint.paths), why)

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse options about ranks, other steps and replicas."""
        self.check_left_out(options.about_ranks, "which says itself what each file holds, and is never encrypted")
        if options.source_prefix or (options.step and self.checkpoint.step is None):
            self.check_left_out([source_option("step"), option("source_prefix")], "without steps or prefixes")
        if options.damage.recovers:
            self.check_left_out([option("recover", True)], "which has each slice once and so nothing to recover from")

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Open its files, and compare each tensor's header with the metadata."""
        from reshard.core.layouts.dcp.catalog import dcp_catalog

        return dcp_catalog(self.checkpoint, options)

    def describe(self) -> Document:
        """Describe it by its metadata; its files are not opened."""
        from reshard.core.layouts.dcp.description import describe_dcp

        return describe_dcp(self.checkpoint, self.ignored, unfinished=self.unfinished)


class DcpSteps(DirectorySteps):
    """The steps of a training with PyTorch in a directory; `.metadata` is written last."""

    def missing_from(self, names: Sequence[str]) -> list[str]:
        """Return the files that a step with these names lacks to be complete."""
        return [] if DCP_METADATA_NAME in names else [DCP_METADATA_NAME]

    def read(self, directory: Location, names: Sequence[str]) -> DcpCheckpoint:
        """Read a step with these names."""
        return read_dcp(directory, names)

    def see(self, observer: StepObserver, step: Step, directory: Location, named: int | None) -> SeenStep:
        """Return a step at one look."""
        names = names_in(directory)
        if lacking := self.missing_from(names):
            return observer.growing(directory, step, f"{listed(lacking)} is not there yet")
        try:
            checkpoint = self.read(directory, names)
            files = {rank: directory.child(part.path) for rank, part in enumerate(checkpoint.parts)}
        except (CatalogError, StrategyError) as error:
            return SeenStep(step, {}, str(error))
        missing = [path for path in checkpoint.paths if "/" not in path and path not in names]
        return observer.finished(step, self.source, files, missing)


class DcpSource(SourceLayout):
    """PyTorch's Distributed Checkpoint, as a source."""

    name = "dcp"

    def is_document(self, name: str) -> bool:
        """True for `.metadata`."""
        return name == DCP_METADATA_NAME

    def recognize(self, place: Place, step: str) -> FoundDcp | None:
        """Return the checkpoint in a directory, or the one that its metadata names."""
        if place.kind is PlaceKind.FILE and self.is_document(place.location.name):
            place = directory_at(place.location.parent)
        checkpoint = dcp_in(place.location, place.names, step)
        return None if checkpoint is None else found_dcp(FoundDcp, checkpoint)

    def holds(self, names: Sequence[str]) -> bool:
        """True for files of DCP, complete or not."""
        return is_dcp(names)

    def find_steps(self, place: Place) -> DcpSteps | None:
        """Return the steps in a directory."""
        steps = list_dcp_steps(place.location, place.names)
        return DcpSteps(place.location, steps) if steps else None


Found = TypeVar("Found", bound=FoundDcp)


def found_dcp(kind: type[Found], checkpoint: DcpCheckpoint, beside: Sequence[str] = ()) -> Found:
    """Return a checkpoint that was found; `beside` are names of other files that belong to it."""
    known = {DCP_METADATA_NAME, STATE_DIRECTORY, *beside, *checkpoint.paths}
    named = [DCP_METADATA_NAME, *checkpoint.paths]
    check_links(checkpoint.location, [checkpoint.location.child(path) for path in named])
    return kind(
        checkpoint.url,
        {rank: (whole_file(checkpoint.location.child(part.path)),) for rank, part in enumerate(checkpoint.parts)},
        checkpoint,
        ignored=tuple(name for name in checkpoint.names if name not in known),
        unfinished=lacks_manifest(checkpoint.location, checkpoint.names),
    )


SOURCE = DcpSource()
