"""A directory of `.npy` files as a target."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import asdict, replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.files.model import CheckpointFormat, FileIndex, FilePlan, OutputEntry
from reshard.core.layouts.options import own_options
from reshard.core.layouts.target_side import TargetSide
from reshard.core.plan.model import ParameterMatch, PlanInputs, TargetFiles
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.layout import whole_layout

from .files import plan_array, read_array
from .options import NpyOptions


class NpyTarget(Record, PlannedLayout):
    """A target with a file for each tensor."""

    name = "npy"
    ranks_are_files = True
    is_whole = True
    file_format = CheckpointFormat.SAFETENSORS

    version: int

    def assign(self, inputs: PlanInputs, match: ParameterMatch) -> ParameterMatch:
        placed = [
            replace(each, target_layouts={number: whole_layout(len(each.shape))})
            for number, each in enumerate(match.resharded)
        ]
        names = tuple(f"{each.name}.npy" for each in placed)
        return replace(match, resharded=tuple(placed), files=TargetFiles(names))

    def plan_file(
        self, rank: int, inputs: PlanInputs, match: ParameterMatch, entries: Sequence[OutputEntry]
    ) -> FilePlan:
        return plan_array(entries[0], self.version)

    def plan_fields(self) -> dict[str, Any]:
        return {"npy": asdict(self)}


class NpySide(TargetSide):
    """The answers about such targets."""

    record: ClassVar[type[PlannedLayout]] = NpyTarget

    def choose(self, options: Any, catalog: CheckpointCatalog) -> NpyTarget:
        return NpyTarget(own_options(options, NpyOptions).npy_version)

    def from_plan(self, document: Mapping[str, Any]) -> NpyTarget | None:
        return NpyTarget(document["npy"]["version"]) if "npy" in document else None

    def owns(self, name: str) -> bool:
        return name.endswith(".npy")

    def read_index(self, file: SourceFile, record: ShardRecord) -> FileIndex:
        return read_array(file)


SIDE = NpySide()
