"""Which target ranks are worth writing side by side, because alone each would read what others need as well.

A rank that gets some columns of a source shard reads them row by row, through the gaps between them; its neighbors in
the target's grid read the same rows for what is in the gaps. From a remote storage whatever two ranks hold alike is
worth reading once, too. Ranks that get rows of their own share nothing.
"""

from collections.abc import Callable, Iterator, Sequence

from reshard.core.plan.plan import ConversionPlan, LayoutClass, ParameterPlan, TargetStage
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES as REMOTE_GAP_WORTH_READING_BYTES
from reshard.core.tensor.slices import Shape
from reshard.core.transfer.read_ranges import gap_cost_bytes
from reshard.core.transfer.reader import GAP_WORTH_READING_BYTES

_GAPS_WORTH_SHARING = 0.25
"""Part of a rank's bytes that reading through gaps must cost on top, for its ranks to be grouped.

Ranks of a group end together: the larger it is, the more is done again after a crash.
"""
_REMOTE_READS_WORTH_SHARING = 0.03
"""Part of a rank's bytes that are read for others as well, or in vain, for its ranks to be grouped."""
_MOST_PARAMETERS_TOGETHER = 2**15
"""Of all ranks of a group; what is known of each takes about a kilobyte while its rank is being written."""


def group_ranks(
    plan: ConversionPlan, ranks: Sequence[int], *, fewest: int, most_ranks: int, remote_source: bool = False
) -> tuple[tuple[int, ...], ...]:
    """The ranks in groups, each to be written side by side.

    There are at least `fewest` groups, as far as there are ranks, and at most `most_ranks` in a group. Where sharing
    gains little, each rank is a group of its own.
    """
    size = max(1, min(most_ranks, len(ranks) // fewest))
    costly = _classes_read_again if remote_source else _classes_with_gaps
    groups: list[tuple[int, ...]] = []
    for stage in plan.stages:
        here = [rank for rank in ranks if rank in stage.ranks]
        classes = costly(plan, stage, here) if here and size > 1 else []
        if classes:
            here = _neighbors_together(here, stage, classes)
        parameters = sum(len(layout_class.parameters) for layout_class in stage.classes)
        together = min(size, _MOST_PARAMETERS_TOGETHER // max(1, parameters)) if classes else 1
        groups.extend(_batches(here, max(1, together)))
    return tuple(groups)


def _classes_with_gaps(plan: ConversionPlan, stage: TargetStage, ranks: Sequence[int]) -> list[LayoutClass]:
    """The layout classes that are read through gaps, the costliest first; none if that costs little."""

    def cost(_: LayoutClass, parameters: Sequence[ParameterPlan]) -> int:
        return sum(gap_cost_bytes(plan, parameter, GAP_WORTH_READING_BYTES) for parameter in parameters)

    costs, needed = _costs(stage, ranks[0], cost)
    return _costliest(costs) if sum(cost for cost, _ in costs) >= _GAPS_WORTH_SHARING * needed else []


def _classes_read_again(plan: ConversionPlan, stage: TargetStage, ranks: Sequence[int]) -> list[LayoutClass]:
    """The layout classes of which ranks read what others read or need, the costliest first; none if that is little."""

    def cost(layout_class: LayoutClass, parameters: Sequence[ParameterPlan]) -> int:
        cells = {layout_class.pair.target.cell_of(rank - stage.ranks.start) for rank in ranks}
        readers = min(len(ranks), len(cells) * plan.inputs.replicas) if plan.inputs.replicas else len(ranks)
        return sum(
            gap_cost_bytes(plan, parameter, REMOTE_GAP_WORTH_READING_BYTES)
            + parameter.size_bytes * (readers - len(cells)) // len(ranks)
            for parameter in parameters
        )

    costs, needed = _costs(stage, ranks[0], cost)
    return _costliest(costs) if sum(cost for cost, _ in costs) > _REMOTE_READS_WORTH_SHARING * needed else []


def _costs(
    stage: TargetStage, rank: int, cost: Callable[[LayoutClass, Sequence[ParameterPlan]], int]
) -> tuple[list[tuple[int, LayoutClass]], int]:
    """What reading each layout class alone costs one of the ranks on top of its bytes, and how many bytes these are.

    Ranks of a stage differ in where they read, not in how much: cuts are even, or nearly so. One tells for all.
    """
    costs, needed = [], 0
    for layout_class in stage.classes:
        parameters = list(layout_class.plans(rank - stage.ranks.start))
        needed += sum(parameter.size_bytes for parameter in parameters)
        costs.append((cost(layout_class, parameters), layout_class))
    return costs, needed


def _costliest(costs: Sequence[tuple[int, LayoutClass]]) -> list[LayoutClass]:
    return [layout_class for cost, layout_class in sorted(costs, key=lambda item: -item[0]) if cost]


def _neighbors_together(ranks: Sequence[int], stage: TargetStage, classes: Sequence[LayoutClass]) -> list[int]:
    """The ranks in the order of their places in the classes' grids: those along the source's last axes share rows."""

    def places(rank: int) -> list[Shape]:
        return [
            _in_source_order(layout_class, layout_class.pair.target.cell_of(rank - stage.ranks.start))
            for layout_class in classes
        ]

    return sorted(ranks, key=places)


def _in_source_order(layout_class: LayoutClass, cell: Shape) -> Shape:
    """A cell's place along each axis of the source, whose axes may be turned."""
    axes = layout_class.parameters[0].pieces[0].axes
    return tuple(cell[place] for place in sorted(range(len(axes)), key=axes.__getitem__))


def _batches(ranks: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    return (tuple(ranks[start : start + size]) for start in range(0, len(ranks), size))
