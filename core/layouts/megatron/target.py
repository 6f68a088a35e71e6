"""The record of a target in the form of Megatron-Core's files of ranks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from msgspec.structs import asdict, replace

from reshard.core.files.model import CheckpointFormat, FilePlan, OutputEntry
from reshard.core.layouts.megatron.plan_fields import encoded_common
from reshard.core.layouts.megatron.sizes import ParallelSizes
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs


class MegatronTarget(Record, PlannedLayout):
    """The files of an iteration, or of a release.

    Attributes:
        sizes: how the model is divided among ranks.
        ends: layers of the first and of the last pipeline stage; 0: as many as the others.
        iteration: its number; 0 for a release.
        tracked: the tracker beside its directory names it when it is complete.
        heads: number of attention heads; 0: as shapes or the source's own arguments tell.
        vocabulary: rows of embedding and output layer; 0: as many as there are.
        common: what the source's training had beside its tensors, pickled; empty if it was none of Megatron's.
    """

    name: ClassVar[str] = "megatron"
    ranks_are_files: ClassVar[bool] = True
    file_format: ClassVar[CheckpointFormat | None] = CheckpointFormat.PT
    outside_place: ClassVar[str] = "on every target rank"
    preset_settings: ClassVar[Mapping[str, str]] = {"names": "megatron"}

    sizes: ParallelSizes
    ends: tuple[int, int]
    iteration: int
    tracked: bool
    heads: int = 0
    vocabulary: int = 0
    common: bytes = b""

    def with_heads(self, heads: int) -> Self:
        """Return it with the heads of a model's config.json, unless it was given others."""
        return replace(self, heads=self.heads or heads)

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign the slices of every parameter to the files of ranks."""
        from reshard.core.layouts.megatron.assignment import megatron_match

        return megatron_match(inputs, match, self)

    def plan_file(
        self, rank: int, inputs: "PlanInputs", match: "ParameterMatch", entries: Sequence[OutputEntry]
    ) -> FilePlan:
        """Lay out a rank's file."""
        from reshard.core.layouts.megatron.file_writing import plan_rank_file

        return plan_rank_file(self, rank, match, entries)

    def notes(self, match: "ParameterMatch") -> tuple[str, ...]:
        """Return with which options Megatron loads it."""
        has_optimizer = any(each.name.startswith("optimizer.") for each in match.resharded)
        if has_optimizer:
            return ("Megatron loads it with --no-load-rng, and without --use-distributed-optimizer",)
        return ("Megatron loads it with --no-load-optim --no-load-rng",) if self.iteration else ()

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        common = encoded_common(self.common)
        return {"megatron": asdict(self) | {"sizes": asdict(self.sizes), "common": common}}
