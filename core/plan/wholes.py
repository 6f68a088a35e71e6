"""The plan of a whole source parameter, whatever its sharding."""

from collections.abc import Sequence

from reshard.core.plan.geometry import ClassGeometry
from reshard.core.plan.layout_classes import LayoutClass
from reshard.core.plan.model import ParameterPlan, SourceTensor
from reshard.core.plan.ownership import SourceCopy
from reshard.core.plan.resharding import unchanged
from reshard.core.tensor.layout import whole_layout


def whole_plan(source: SourceTensor, copies: Sequence[SourceCopy]) -> ParameterPlan:
    """Return the plan of a whole source parameter, made from some of its copies."""
    uncut = whole_layout(len(source.shape)).shard_grid(len(source.shape))
    geometry = ClassGeometry.of_whole(copies, uncut, source.shape)
    [plan] = LayoutClass(geometry, copies[0].first_rank, (unchanged(source, {}),)).plans(0)
    return plan
