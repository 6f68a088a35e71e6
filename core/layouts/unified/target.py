"""The record of a unified target: whole tensors in files of about equal size, each parameter in one of them."""

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import asdict, replace

from reshard.core.files.model import MINDSPORE, PYTORCH, CheckpointFormat
from reshard.core.layouts.unified.companions import Companions
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.plan.planned_layout import CompanionFile, PlannedLayout
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs


class UnifiedTarget(Record, PlannedLayout):
    """A unified target.

    Attributes:
        max_shard_bytes: most bytes of parameters in a file, unless one parameter alone has more.
        naming: convention for the names of files and index: `huggingface`, `mindspore`, or `peft` for an adapter.
        companions: files to copy beside its own, with which they are a complete Hugging Face directory.
        adapter_config: the configuration of an adapter, as JSON; empty for models.
    """

    name: ClassVar[str] = "unified"
    ranks_are_files: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True
    file_format: ClassVar[CheckpointFormat | None] = CheckpointFormat.SAFETENSORS
    carries_float8: ClassVar[bool] = True
    quantizes: ClassVar[bool] = True

    max_shard_bytes: int
    naming: str
    companions: Companions | None = None
    adapter_config: str = ""

    @property
    def framework(self) -> str:
        """The framework that its files are marked for."""
        return MINDSPORE if self.naming == UnifiedNaming.MINDSPORE else PYTORCH

    @property
    def companion_files(self) -> tuple[CompanionFile, ...]:
        """The files that are copied beside its own."""
        return self.companions.files if self.companions else ()

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign every parameter, whole, to one file."""
        from reshard.core.layouts.unified.assignment import unified_match

        return unified_match(inputs, match, self.naming, self.max_shard_bytes)

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        options: dict[str, Any] = {"max_shard_bytes": self.max_shard_bytes, "naming": self.naming}
        if self.adapter_config:
            options["adapter_config"] = self.adapter_config
        if not self.companions:
            return {"unified": options}
        companions = asdict(self.companions) | {"files": [asdict(file) for file in self.companions.files]}
        if not self.companions.quantization:  # as plans of earlier versions have it
            del companions["quantization"]
        return {"unified": options, "companions": companions}


def with_companions(layout: PlannedLayout, companions: Companions) -> UnifiedTarget:
    """Return a unified target with companions."""
    assert isinstance(layout, UnifiedTarget), f"a {layout.name} target has no companions"
    return replace(layout, companions=companions)
