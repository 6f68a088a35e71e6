"""The record of a target in the form of MindFormers' Checkpoint 2.0."""

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import asdict

from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.checkpoint2.names import COMMON_NAME
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs


class IterationTarget(Record, PlannedLayout):
    """An iteration.

    Attributes:
        number: the iteration.
        common: keys and values of its common.json.
        tracked: the tracker beside the iteration's directory names it when it is complete.
    """

    name: ClassVar[str] = "checkpoint2"
    ranks_are_files: ClassVar[bool] = True
    file_format: ClassVar[CheckpointFormat | None] = CheckpointFormat.SAFETENSORS
    outside_place: ClassVar[str] = "on every target rank"

    number: int
    common: tuple[tuple[str, int | float | None], ...]
    tracked: bool

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign the shards of every rank to its file of the network and its file of the optimizer."""
        from reshard.core.layouts.checkpoint2.assignment import iteration_match

        return iteration_match(inputs, match)

    def notes(self, match: "ParameterMatch") -> tuple[str, ...]:
        """Return what its user should know of where parameters are."""
        names = match.files.in_documents
        return (f"in {COMMON_NAME} of the target, and in none of its files: {listed(names)}",) if names else ()

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        return {"iteration": asdict(self)}
