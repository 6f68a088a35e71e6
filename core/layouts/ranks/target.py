"""Targets of rank folders: `rank_3/checkpoint_3.ckpt`; of one stage's part, `rank_3/checkpoint_3_part1.ckpt`."""

from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs

DEFAULT_PREFIX = "checkpoint_"


class RankFolders(Record, PlannedLayout):
    """A target with a file for each rank; `prefix` begins its name, before the rank's number."""

    name: ClassVar[str] = "ranks"
    marks_redundancy: ClassVar[bool] = True

    prefix: str = DEFAULT_PREFIX

    def file_name(self, rank: int, inputs: "PlanInputs", match: "ParameterMatch") -> str:
        """Return the path of a rank's file below the target."""
        part = "" if match.part is None else f"_part{match.part}"
        return f"rank_{rank}/{self.prefix}{rank}{part}.{inputs.format}"

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        return {"prefix": self.prefix}
