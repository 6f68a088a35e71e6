"""Groups of target ranks written side by side, so that bytes which several of them need are read once.

A rank that gets some columns of a source shard reads them row by row, through the gaps between them; its neighbors in
the target's grid need the bytes in the gaps. From a remote storage replicas are worth reading once, too. Ranks that get
rows of their own have no reads in common.
"""

from collections.abc import Callable, Sequence

from reshard.core.plan.layout_classes import LayoutClass, TargetStage
from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.storage.transfers import GAP_WORTH_READING_BYTES as REMOTE_GAP_WORTH_READING_BYTES
from reshard.core.tensor.layout import BoxGrid
from reshard.core.tensor.slices import Shape
from reshard.core.transfer.read_ranges import gap_cost_bytes
from reshard.core.transfer.reader import GAP_WORTH_READING_BYTES

_MIN_GAP_COST = 0.25
"""Least cost of reading through gaps, as a fraction of a rank's bytes, that justifies a group.

Ranks of a group end together: the larger it is, the more is done again after a crash.
"""
_MIN_REMOTE_COST = 0.03
"""Least fraction of a rank's bytes, read for other ranks or dropped, that justifies a group."""
_MAX_GROUP_PARAMETERS = 2**15
"""Limit for all ranks of a group together; each parameter takes about a kilobyte while its rank is being written."""


def group_ranks(
    plan: ConversionPlan, ranks: Sequence[int], *, min_groups: int, max_ranks: int, remote_source: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Divide ranks into at least `min_groups` groups, if there are as many ranks, of at most `max_ranks`.

    Where common reads are few, each rank is a group of its own.
    """
    size = max(1, min(max_ranks, len(ranks) // min_groups))
    costly = _classes_read_again if remote_source else _classes_with_gaps
    groups: list[tuple[int, ...]] = []
    for stage in plan.stages:
        here = [rank for rank in ranks if rank in stage.ranks]
        classes = costly(plan, stage, here) if here and size > 1 else []
        if classes:
            here = _neighbors_together(here, stage, classes)
        parameters = sum(len(layout_class.parameters) for layout_class in stage.classes)
        group_size = max(1, min(size, _MAX_GROUP_PARAMETERS // max(1, parameters))) if classes else 1
        groups.extend(tuple(here[start : start + group_size]) for start in range(0, len(here), group_size))
    return tuple(groups)


def _classes_with_gaps(plan: ConversionPlan, stage: TargetStage, ranks: Sequence[int]) -> list[LayoutClass]:
    """Layout classes that are read through gaps, the costliest first; none if the gaps cost little."""

    def cost(_: LayoutClass, parameters: Sequence[ParameterPlan]) -> int:
        return _gap_cost_bytes(plan, parameters, GAP_WORTH_READING_BYTES)

    costs, needed_bytes = _costs(stage, ranks[0], cost)
    return _costliest(costs) if sum(each.extra_bytes for each in costs) >= _MIN_GAP_COST * needed_bytes else []


def _classes_read_again(plan: ConversionPlan, stage: TargetStage, ranks: Sequence[int]) -> list[LayoutClass]:
    """Layout classes of which ranks read bytes that others need, the costliest first; none if these are few."""

    def cost(layout_class: LayoutClass, parameters: Sequence[ParameterPlan]) -> int:
        cells = {layout_class.geometry.target.cell_of(rank - stage.ranks.start) for rank in ranks}
        readers = min(len(ranks), len(cells) * plan.inputs.replicas) if plan.inputs.replicas else len(ranks)
        read_again = sum(parameter.size_bytes * (readers - len(cells)) // len(ranks) for parameter in parameters)
        return _gap_cost_bytes(plan, parameters, REMOTE_GAP_WORTH_READING_BYTES) + read_again

    costs, needed_bytes = _costs(stage, ranks[0], cost)
    return _costliest(costs) if sum(each.extra_bytes for each in costs) > _MIN_REMOTE_COST * needed_bytes else []


class _Cost(Record):
    """Extra bytes that a rank alone reads for a layout class."""

    extra_bytes: int
    layout_class: LayoutClass


def _costs(
    stage: TargetStage, rank: int, cost: Callable[[LayoutClass, Sequence[ParameterPlan]], int]
) -> tuple[list[_Cost], int]:
    """What a rank alone costs for each layout class, and the bytes that it needs.

    One rank represents its whole stage: shards are even, or nearly so, hence ranks differ in where they read, not in
    how much.
    """
    costs, needed_bytes = [], 0
    for layout_class in stage.classes:
        parameters = list(layout_class.plans(rank - stage.ranks.start))
        needed_bytes += int(layout_class.shard_bytes[rank - stage.ranks.start])
        costs.append(_Cost(cost(layout_class, parameters), layout_class))
    return costs, needed_bytes


def _gap_cost_bytes(plan: ConversionPlan, parameters: Sequence[ParameterPlan], gap_bytes: int) -> int:
    """Bytes that shards of a layout class cost beyond their own because they take parts of the sources' rows."""
    # those of one shape have the same reads: the gaps are as wide if the elements are
    costs: dict[object, int] = {}
    total = 0
    for parameter in parameters:
        kind = parameter.reads, tuple(source.dtype for source in parameter.sources)
        if kind not in costs:
            costs[kind] = gap_cost_bytes(plan, parameter, gap_bytes)
        total += costs[kind]
    return total


def _costliest(costs: Sequence[_Cost]) -> list[LayoutClass]:
    by_cost = sorted(costs, key=lambda each: -each.extra_bytes)
    return [each.layout_class for each in by_cost if each.extra_bytes]


def _neighbors_together(ranks: Sequence[int], stage: TargetStage, classes: Sequence[LayoutClass]) -> list[int]:
    """Sort ranks by their places in the classes' grids: neighbors along the source's last axes need the same rows."""

    def places(rank: int) -> list[Shape]:
        return [
            _in_source_order(layout_class, layout_class.geometry.target.cell_of(rank - stage.ranks.start))
            for layout_class in classes
        ]

    return sorted(ranks, key=places)


def _in_source_order(layout_class: LayoutClass, cell: Shape) -> Shape:
    """A cell's place along each axis of the source, whose axes may be in another order; new axes come first.

    Listed boxes have one number in place of these.
    """
    if isinstance(layout_class.geometry.target, BoxGrid):
        return cell
    pieces = layout_class.parameters[0].pieces
    axes = pieces[0].axes if pieces else ()
    return tuple(cell[place] for place in sorted(range(len(axes)), key=axes.__getitem__))
