"""The record of a target in the form of PyTorch's Distributed Checkpoint."""

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import asdict

from reshard.core.checkpoint.catalog import StatePath
from reshard.core.files.model import CheckpointFormat
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs


class DcpTarget(Record, PlannedLayout):
    """A DCP directory.

    Attributes:
        shards: number of files to divide every tensor's rows among; 0: a strategy shards the target.
        paths: names in the source -> keys of the tensors in its nested state dict.
    """

    name: ClassVar[str] = "dcp"
    ranks_are_files: ClassVar[bool] = True
    file_format: ClassVar[CheckpointFormat | None] = CheckpointFormat.DISTCP
    drops_empty_shards: ClassVar[bool] = True
    carries_float8: ClassVar[bool] = True

    shards: int = 0
    paths: tuple[tuple[str, StatePath], ...] = ()

    def kept_replicas(self, asked: int) -> int:
        """Return 1: every slice is in one file."""
        return 1

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign the shards of every rank to a file, or some rows of every tensor to each."""
        from reshard.core.layouts.dcp.assignment import dcp_match

        return dcp_match(inputs, match, self.shards)

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        return {"dcp": asdict(self)}
