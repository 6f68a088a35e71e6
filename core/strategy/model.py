"""The strategy of a checkpoint: for each pipeline stage the layouts of its parameters.

Ranks are numbered stage by stage: a stage's first rank is its number times the devices per stage.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import field

from reshard.core.errors import StrategyError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.tensor.layout import ParameterLayout


class OperatorStrategy(Record):
    """How one operator's inputs are sharded; kept so that files can be rewritten without loss."""

    node_name: str
    stage: int
    dims: tuple[tuple[int, ...], ...]


class StageStrategy(Record, dict=True):
    """One pipeline stage: the layout of each of its parameters, by name without a stage prefix, in the file's order.

    `devices` is for a stage that may have no parameters to derive their number from.
    """

    stage: int
    layouts: Mapping[str, ParameterLayout]
    operators: tuple[OperatorStrategy, ...] = ()
    devices: int | None = None

    @cached_property
    def device_count(self) -> int:
        """Devices of this stage, which all layouts must agree on."""
        by_count = {layout.device_count: name for name, layout in self.layouts.items()}
        if not by_count and self.devices is not None:
            return self.devices
        if not by_count:
            raise StrategyError(f"stage {self.stage} has no parameter layouts")
        if len(by_count) > 1:
            counts = ", ".join(f"{count} for {name!r}" for count, name in sorted(by_count.items()))
            raise StrategyError(f"the device matrices of stage {self.stage} give different device counts: {counts}")
        return next(iter(by_count))


class Strategy(Record, dict=True):
    """The strategy of a checkpoint.

    Attributes:
        stages: pipeline stages in ascending order: 0..n-1, or a single one of any number in a stage's own strategy.
        origin: URL that it was read from, for messages.
        merged: False for a stage's own file, whose stage may be one of several.
        unsharded: parameters that metadata lists without a layout, so that every rank has all of them -> number of
            axes; they are in no stage.
        notes: sentences for the user on how it was read.
    """

    stages: tuple[StageStrategy, ...]
    origin: str
    merged: bool = True
    unsharded: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = [stage.stage for stage in self.stages]
        complete = numbers == list(range(len(numbers)))
        if not numbers or not (complete or (len(numbers) == 1 and not self.merged)):
            raise StrategyError(
                f"{self.origin}: holds stages [{listed([*map(str, numbers)], 16)}], not 0..n-1 without a hole"
            )
        try:
            counts = {stage.device_count for stage in self.stages}
        except StrategyError as error:
            raise StrategyError(f"{self.origin}: {error.marked}") from error
        if len(counts) > 1:
            devices = ", ".join(f"stage {stage.stage}: {stage.device_count}" for stage in self.stages)
            raise StrategyError(f"{self.origin}: stages have different numbers of devices ({devices})")

    @cached_property
    def lists_boxes(self) -> bool:
        """True if it lists the box of each shard, so that it can only be its checkpoint's own."""
        return any(layout.boxes is not None for stage in self.stages for layout in stage.layouts.values())

    @property
    def devices_per_stage(self) -> int:
        """Number of devices of each stage."""
        return self.stages[0].device_count

    @property
    def ranks(self) -> range:
        """Global ranks that the strategy describes."""
        first = self.stages[0].stage * self.devices_per_stage
        return range(first, first + len(self.stages) * self.devices_per_stage)

    def stage_of(self, rank: int) -> StageStrategy:
        """Return the stage of a global rank."""
        return self.stages[(rank - self.ranks.start) // self.devices_per_stage]

    def stage_ranks(self, stage: StageStrategy) -> range:
        """Return the global ranks of a stage."""
        first = stage.stage * self.devices_per_stage
        return range(first, first + self.devices_per_stage)

    def stages_with(self, parameter: str) -> Iterator[StageStrategy]:
        """Yield the stages that have a parameter, lowest first."""
        return (stage for stage in self.stages if parameter in stage.layouts)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters of all stages."""
        return frozenset(name for stage in self.stages for name in stage.layouts)
