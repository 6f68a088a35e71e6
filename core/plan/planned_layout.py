"""What a plan asks of its target's layout, which says how the target lies in its directory. Pure: nothing is read here.

Each layout's package has a record of its own, with the options that decide the target's content.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from reshard.core.files.any_format import plan_file
from reshard.core.files.model import MINDSPORE, CheckpointFormat, FilePlan, OutputEntry
from reshard.core.runtime.records import Record

if TYPE_CHECKING:  # `model` imports this module
    from reshard.core.plan.model import ParameterMatch, PlanInputs


class CompanionFile(Record):
    """A file that is copied beside the target's, as it is written: size and digest of its bytes."""

    name: str
    size_bytes: int
    digest: str


class PlannedLayout:
    """The layout of a plan's target; this one is of a plan that is only examined, and never written.

    Attributes:
        name: the layout's name.
        ranks_are_files: the target's ranks are its files, not devices.
        is_whole: every tensor is whole, in one file.
        file_format: the only format that its files can have; None: there are several.
        drops_empty_shards: shards without elements are in no file.
        marks_redundancy: its files say whether redundancy was removed from them.
        carries_float8: its files can hold floats of 8 bits.
        quantizes: parameters can be quantized on the way to it.
        outside_place: where a parameter is that no strategy knows.
        preset_settings: switches of presets that its loaders always want alike; `names` is the world of their names.
    """

    name: ClassVar[str] = ""
    ranks_are_files: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False
    file_format: ClassVar[CheckpointFormat | None] = None
    drops_empty_shards: ClassVar[bool] = False
    marks_redundancy: ClassVar[bool] = False
    carries_float8: ClassVar[bool] = False
    quantizes: ClassVar[bool] = False
    outside_place: ClassVar[str] = "once in the target"
    preset_settings: ClassVar[Mapping[str, str]] = {}

    @property
    def framework(self) -> str:
        """The framework that its `.safetensors` files are marked for."""
        return MINDSPORE

    @property
    def companion_files(self) -> tuple[CompanionFile, ...]:
        """The files that are copied beside its own."""
        return ()

    def kept_replicas(self, asked: int) -> int:
        """Return how many copies of each slice it has if `asked` are to be kept; 0: one on every rank that owns it."""
        return asked

    def assign(self, inputs: "PlanInputs", match: "ParameterMatch") -> "ParameterMatch":
        """Assign the parameters of a target sharded by its strategy to files.

        Raises:
            PlanError: a parameter has no place in such a target.
        """
        return match

    def file_name(self, rank: int, inputs: "PlanInputs", match: "ParameterMatch") -> str:
        """Return the path of a rank's file below the target."""
        return match.files.names[rank]

    def plan_file(
        self, rank: int, inputs: "PlanInputs", match: "ParameterMatch", entries: Sequence[OutputEntry]
    ) -> FilePlan:
        """Lay out a rank's file, which holds `entries`.

        Raises:
            CheckpointError: its format cannot hold an entry.
        """
        return plan_file(
            inputs.format,
            entries,
            redundancy_removed=inputs.replicas > 0 if self.marks_redundancy else None,
            with_crc=inputs.write_crc,
            framework=self.framework,
        )

    def notes(self, match: "ParameterMatch") -> tuple[str, ...]:
        """Return what its user should know of where parameters are, in sentences."""
        return ()

    def with_heads(self, heads: int) -> Self:
        """Return it for a model with so many attention heads, by config.json, if it has to know; 0: not known."""
        return self

    def plan_fields(self) -> dict[str, Any]:
        """Return its fields in the JSON document of a plan."""
        return {}


class ComparedLayout(PlannedLayout):
    """The layout of a plan whose values are compared and never written."""

    quantizes: ClassVar[bool] = True


NOT_WRITTEN = PlannedLayout()
ONLY_COMPARED = ComparedLayout()
