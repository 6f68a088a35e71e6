"""The record of a target in the form of DeepSpeed's universal checkpoint."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import asdict

from reshard.core.files.model import CheckpointFormat, FilePlan, OutputEntry
from reshard.core.layouts.megatron.plan_fields import encoded_common
from reshard.core.layouts.universal.names import parse_state
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed

if TYPE_CHECKING:
    from reshard.core.plan.model import ParameterMatch, PlanInputs

_MAX_LISTED = 4
_NO_MOMENTS = (
    "there is no optimizer state: DeepSpeed begins with a new optimizer. ZeRO 3 loads it with load_checkpoint(…, "
    "load_module_only=True)"
)
_STEP = (
    "before ZeRO 3 goes on with an optimizer of torch's own, give its states tensors: for state in "
    "engine.optimizer.optimizer.state.values(): state['step'] = torch.tensor(float(state['step']))"
)
_SETTINGS = (
    "settings of the optimizer, its learning rate among them, are those that the training is configured with; a "
    "learning rate schedule begins anew, with load_checkpoint(…, load_lr_scheduler_states=False)"
)


class UniversalTarget(Record, PlannedLayout):
    """A universal checkpoint.

    Attributes:
        iteration: number of the training's step.
        tracked: `latest_universal` beside its directory names it when it is complete.
        optimizer_step: how many steps the optimizer has made; 0: unknown.
        training: what the source says of its training besides, pickled; empty if it was none of DeepSpeed's.
    """

    name: ClassVar[str] = "universal"
    ranks_are_files: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True
    file_format: ClassVar[CheckpointFormat | None] = CheckpointFormat.PT

    iteration: int
    tracked: bool
    optimizer_step: int = 0
    training: bytes = b""

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign every tensor, whole, to a file of its own."""
        from reshard.core.layouts.universal.assignment import universal_match

        return universal_match(inputs, match, self)

    def plan_file(
        self, rank: int, inputs: "PlanInputs", match: "ParameterMatch", entries: Sequence[OutputEntry]
    ) -> FilePlan:
        """Lay out one file."""
        from reshard.core.layouts.universal.file_writing import plan_universal_file

        return plan_universal_file(self, rank, match, entries)

    def notes(self, match: "ParameterMatch") -> tuple[str, ...]:
        """Return how DeepSpeed loads it, and what it does not load."""
        names = [each.name for each in match.resharded]
        optimized = {parameter for state, parameter in map(parse_state, names) if state}
        if not optimized:
            unused = f"; the number of optimizer steps, {self.optimizer_step}, is not written"
            return (_NO_MOMENTS + (unused if self.optimizer_step else ""),)
        from reshard.core.layouts.universal.training import groups_of

        notes = [_STEP] if groups_of(self.training) else [_SETTINGS, _STEP]
        others = [name for name in names if not parse_state(name)[0] and name not in optimized]
        if others:
            notes.append(
                f"no moments of {listed(others, _MAX_LISTED)}: DeepSpeed loads no such parameters (frozen ones, other "
                "names of tied ones, buffers) from a universal checkpoint; the training has to bring them"
            )
        return tuple(notes)

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        return {"universal": asdict(self) | {"training": encoded_common(self.training)}}
