"""The record of a target in the form of Megatron-Core's `torch_dist`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from msgspec.structs import asdict, replace

from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.megatron.plan_fields import encoded_common
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs


class TorchDistTarget(Record, PlannedLayout):
    """A directory of `torch_dist`.

    Attributes:
        shards: number of files to divide every tensor's rows among.
        iteration: its number; 0 for a release.
        tracked: the tracker beside its directory names it when it is complete.
        is_local: Megatron-Core's own layers load it, and not those of Transformer Engine.
        is_plain: the optimizer is not divided among data-parallel ranks.
        numbers_layers: layers are tensors of their own, even if they are alike.
        heads: number of attention heads; 0: as shapes or the source's arguments tell.
        common: what the source's training had beside its tensors, pickled; empty if it was not Megatron's.
    """

    name: ClassVar[str] = "torch_dist"
    ranks_are_files: ClassVar[bool] = True
    file_format: ClassVar[CheckpointFormat | None] = CheckpointFormat.DISTCP
    drops_empty_shards: ClassVar[bool] = True
    carries_float8: ClassVar[bool] = True
    preset_settings: ClassVar[Mapping[str, str]] = {"names": "megatron"}

    shards: int
    iteration: int
    tracked: bool
    is_local: bool = False
    is_plain: bool = False
    numbers_layers: bool = False
    heads: int = 0
    common: bytes = b""

    def kept_replicas(self, asked: int) -> int:
        """Return 1: every slice is in one file."""
        return 1

    def with_heads(self, heads: int) -> Self:
        """Return it with the heads of a model's config.json, unless it was given others."""
        return replace(self, heads=self.heads or heads)

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign some rows of every tensor to each file."""
        from reshard.core.layouts.torch_dist.assignment import torch_dist_match

        return torch_dist_match(inputs, match, self)

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        return {"torch_dist": asdict(self) | {"common": encoded_common(self.common)}}
