"""Derives from strategies alone which source ranks a target rank is read from.

A strategy that is one pipeline stage's own counts as stage 0 here: its ranks are numbered from 0, as MindSpore numbers
them for `rank_list_for_transform` and `transform_checkpoint_by_rank`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from reshard.core.errors import LayoutError, PlanError
from reshard.core.plan.ownership import CopyShards, SourceCopy, common_units
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.tensor.slices import Shape


def from_zero(strategy: Strategy | None) -> Strategy | None:
    """Return the strategy, its ranks numbered from 0 if it is one stage's own."""
    return None if strategy is None else _numbered_from_zero(strategy)


def check_rank(target: Strategy | None, rank: int, source: Strategy | None = None) -> None:
    """Raise PlanError unless the target has the rank, or, without a target strategy, a source stage has it."""
    ranks = target.ranks if target else range(source.devices_per_stage if source else 1)
    if rank not in ranks:
        raise PlanError(f"rank_id {rank}: the target has ranks {ranks.start} to {ranks.stop - 1}")


def needed_ranks(source: Strategy, target: Strategy | None, rank: int) -> set[int]:
    """The source ranks that a conversion reads for a target rank, parameters outside the strategies included.

    The replica of a slice that is read is the one in the target rank's place in its stage, as in MindSpore; in stages
    of one device MindSpore takes the rank itself for its place. A parameter outside the strategies is on every rank; it
    is read in the target rank's place in the lowest stage that is read.
    """
    check_rank(target, rank, source)
    return _StageNeeds(source, target, target.stage_of(rank) if target else None).of(rank)


def needed_of_all(source: Strategy | None, target: Strategy | None) -> set[int]:
    """The source ranks that a conversion of all target ranks reads."""
    if source is None:
        return {0}
    shared = _numbered_from_zero(source)
    first = source.ranks.start - shared.ranks.start
    if target is None:
        return {first + rank for rank in _StageNeeds(shared, None, None).of(0)}
    needed: set[int] = set()
    for stage in target.stages:
        needs = _StageNeeds(shared, target, stage)
        needed.update(first + read for rank in target.stage_ranks(stage) for read in needs.of(rank))
    return needed


def _numbered_from_zero(strategy: Strategy) -> Strategy:
    if strategy.merged:
        return strategy
    return replace(strategy, stages=(replace(strategy.stages[0], stage=0),))


class _StageNeeds:
    """The source ranks of a target stage's ranks, or of ranks that get whole tensors."""

    def __init__(self, source: Strategy, target: Strategy | None, stage: StageStrategy | None) -> None:
        self._source, self._target = source, target
        self._first_rank = target.stage_ranks(stage).start if target and stage else None
        representatives: dict[tuple[int, ParameterLayout, ParameterLayout | None], str] = {}
        for name in stage.layouts if stage else sorted(source.parameters):
            holder = next(source.stages_with(name), None)
            if holder is None:
                continue
            first_rank = source.stage_ranks(holder).start
            of_target = stage.layouts[name] if stage else None
            representatives.setdefault((first_rank, holder.layouts[name], of_target), name)
        self._pairs = [
            _LayoutPair(name, first_rank, of_source, of_target)
            for (first_rank, of_source, of_target), name in representatives.items()
        ]

    def of(self, rank: int) -> set[int]:
        """The source ranks of a target rank."""
        # a rank that gets the whole is stage rank 0; its number is its place
        stage_rank = 0 if self._first_rank is None else rank - self._first_rank
        by_itself = self._target is None or self._target.devices_per_stage == 1
        place = rank if by_itself else stage_rank
        needed = {read for pair in self._pairs for read in pair.read_ranks(stage_rank, place)}
        feeding = min((pair.first_rank for pair in self._pairs), default=0)
        return needed | {feeding + place % self._source.devices_per_stage}


class _LayoutPair:
    """The source and target layouts of a parameter, which represents all with equal layouts.

    `first_rank` is the first one of the source stage.
    """

    def __init__(self, name: str, first_rank: int, source: ParameterLayout, target: ParameterLayout | None) -> None:
        self._name = name
        self.first_rank = first_rank
        with self._named_errors():
            axis_count = _axis_count(source, target)
            self._units = _units(axis_count, source, target)
            self._shards = CopyShards(SourceCopy(0, source), self._units)
            self._target_cut = (target or whole_layout(axis_count)).shard_grid(axis_count)

    def read_ranks(self, stage_rank: int, place: int) -> Iterator[int]:
        """The source ranks of a target stage rank."""
        cut = self._shards.grid
        ours = place % cut.device_count
        # replicas have the same numbers for all slices
        number = cut.owners[cut.cell_of(ours)].index(ours)
        with self._named_errors():
            box = self._target_cut.box_of(stage_rank, self._units)
        for cell, _ in self._shards.boxes.overlaps(box):
            yield self.first_rank + cut.owners[cell][number]

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except LayoutError as error:
            raise PlanError(f"parameter {self._name!r}: {error.marked}") from error


def _units(axis_count: int, source: ParameterLayout, target: ParameterLayout | None) -> Shape:
    cuts = [layout.shard_grid(axis_count) for layout in (source, target) if layout]
    uneven = [sum(cut.uneven) for cut in cuts if cut.uneven]
    # the lengths of uneven shards add up to the axis
    shape = tuple(uneven[0] if uneven and axis == 0 else 0 for axis in range(axis_count))
    return common_units(shape, cuts)


def _axis_count(source: ParameterLayout, target: ParameterLayout | None) -> int:
    """The number of axes that suits both layouts; a flat map of several numbers may be a 1-d tensor's nested one."""
    possible = [
        {len(layout.tensor_map)}
        | ({1} if layout.tensor_map and not layout.nested and all(layout.tensor_map) else set())
        for layout in (source, target)
        if layout
    ]
    common = set.intersection(*possible)
    if not common:
        raise LayoutError(
            f"it has {len(source.tensor_map)} axes in the source's strategy, "
            f"{len(target.tensor_map) if target else 0} in the target's"
        )
    return max(common)
