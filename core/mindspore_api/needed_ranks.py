"""Which source ranks a target rank is made from, told by the strategies alone.

A strategy that is one pipeline stage's own counts as stage 0 here: its ranks are numbered from 0, as MindSpore numbers
them for `rank_list_for_transform` and `transform_checkpoint_by_rank`.
"""

from collections.abc import Iterator
from dataclasses import replace

from core.errors import LayoutError, PlanError
from core.holders import CopyGrid, SourceCopy, common_units
from core.layout import ParameterLayout, whole_layout
from core.slices import Shape
from core.strategy.model import Strategy


def from_zero(strategy: Strategy | None) -> Strategy | None:
    """The strategy, its ranks numbered from 0 if it is one stage's own."""
    if strategy is None or strategy.merged:
        return strategy
    return replace(strategy, stages=(replace(strategy.stages[0], stage=0),))


def check_rank(target: Strategy | None, rank: int) -> None:
    """Makes sure that the target has a rank.

    Raises:
        PlanError: it has not.
    """
    ranks = target.ranks if target else range(1)
    if rank not in ranks:
        raise PlanError(f"rank_id {rank}: the target has ranks {ranks.start} to {ranks.stop - 1}")


def needed_ranks(source: Strategy, target: Strategy | None, rank: int) -> set[int]:
    """The source ranks that a conversion reads for a target rank, parameters outside the strategies included.

    Of ranks that hold the same slice it is the one that shares its place with the target rank, as in MindSpore. What no
    strategy knows every rank holds; it comes from the rank in the target rank's place in the lowest stage that is read.
    In stages of one device MindSpore takes the rank itself for its place.

    Raises:
        PlanError: the target has no such rank, or the layouts of a parameter do not fit each other.
    """
    check_rank(target, rank)
    stage = target.stage_of(rank) if target else None
    stage_rank = rank - target.stage_ranks(stage).start if target and stage else rank
    place = rank if target and target.devices_per_stage == 1 else stage_rank
    needed: set[int] = set()
    feeding: set[int] = set()
    seen: set[tuple[int, ParameterLayout, ParameterLayout | None]] = set()
    for name in stage.layouts if stage else sorted(source.parameters):
        holder = next(source.stages_holding(name), None)
        if holder is None:
            continue
        first_rank = source.stage_ranks(holder).start
        feeding.add(first_rank)
        layouts = holder.layouts[name], stage.layouts[name] if stage else None
        if (first_rank, *layouts) not in seen:
            seen.add((first_rank, *layouts))
            try:
                needed.update(first_rank + read for read in _read_ranks(*layouts, stage_rank, place))
            except LayoutError as error:
                raise PlanError(f"parameter {name!r}: {error}") from error
    devices = source.devices_per_stage
    needed.add(min(feeding, default=0) + place % devices)
    return needed


def _read_ranks(source: ParameterLayout, target: ParameterLayout | None, stage_rank: int, place: int) -> Iterator[int]:
    """The stage ranks of the source that a stage rank of the target is made from."""
    axis_count = _axis_count(source, target)
    units = _units(axis_count, source, target)
    grid = CopyGrid(SourceCopy(0, source), units)
    holders = grid.cut.holders
    ours = place % grid.cut.device_count
    # the ranks that share a slice are numbered alike for all slices
    number = holders[grid.cut.cell_of(ours)].index(ours)
    for cell, _ in grid.overlaps((target or whole_layout(axis_count)).cut(axis_count).box_of(stage_rank, units)):
        yield holders[cell][number]


def _units(axis_count: int, source: ParameterLayout, target: ParameterLayout | None) -> Shape:
    cuts = [layout.cut(axis_count) for layout in (source, target) if layout]
    uneven = [sum(cut.uneven) for cut in cuts if cut.uneven]
    # of a tensor that is cut unevenly the lengths tell how long it is
    shape = tuple(uneven[0] if uneven and axis == 0 else 0 for axis in range(axis_count))
    return common_units(shape, cuts)


def _axis_count(source: ParameterLayout, target: ParameterLayout | None) -> int:
    """How many axes both layouts can be of; a flat map of several numbers may be a 1-d tensor's nested one."""
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
