"""The plan of a whole source parameter, whatever its sharding."""

from collections.abc import Sequence

from msgspec.structs import replace

from reshard.core.plan.geometry import ClassGeometry
from reshard.core.plan.layout_classes import LayoutClass
from reshard.core.plan.model import ParameterPlan, ReadItem, SourceTensor
from reshard.core.plan.ownership import SourceCopy
from reshard.core.plan.resharding import unchanged
from reshard.core.tensor.layout import whole_layout


def whole_plan(source: SourceTensor, copies: Sequence[SourceCopy]) -> ParameterPlan:
    """Return the plan of a whole source parameter, made from some of its copies."""
    uncut = whole_layout(len(source.shape)).shard_grid(len(source.shape))
    geometry = ClassGeometry.of_whole(copies, uncut, source.shape)
    [plan] = LayoutClass(geometry, copies[0].first_rank, (unchanged(source, {}),)).plans(0)
    return plan


def other_replicas(plan: ParameterPlan, source: SourceTensor) -> ParameterPlan:
    """Return the plan of a whole source parameter with reads of the highest ranks that own replicas, not the lowest."""

    def read_of(read: ReadItem) -> ReadItem:
        copy = max((each for each in source.copies if each.first_rank <= read.source_rank), key=_first_rank)
        grid = copy.layout.shard_grid(len(source.shape))
        owners = (copy.first_rank + rank for rank in grid.owners[grid.cell_of(read.source_rank - copy.first_rank)])
        return replace(read, source_rank=max(rank for rank in owners if rank not in copy.missing_ranks))

    return replace(plan, reads=tuple(map(read_of, plan.reads)))


def _first_rank(copy: SourceCopy) -> int:
    return copy.first_rank
