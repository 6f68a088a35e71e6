"""The plan of a part of a parameter: the elements in a box of it, perhaps stepped."""

from msgspec.structs import replace

from reshard.core.plan.model import ParameterPlan
from reshard.core.tensor.slices import TensorSlice


def selected_plan(parameter: ParameterPlan, box: TensorSlice) -> ParameterPlan:
    """Return the plan of the elements of `parameter` in a box of its shape, whose reads keep its axes."""
    reads = []
    for read in parameter.reads:
        common = read.target_box.intersect(box)
        if common is not None:
            source_box = common.relative_to(read.target_box).shifted(read.source_box.start)
            place = _place(common, box)
            reads.append(replace(read, source_box=source_box, target_box=place))
    return replace(parameter, box=TensorSlice.whole(box.shape), reads=tuple(reads))


def _place(common: TensorSlice, box: TensorSlice) -> TensorSlice:
    """Where elements of a box are among its elements alone."""
    start = tuple(
        (low - first) // step for low, first, step in zip(common.start, box.start, box.distances, strict=True)
    )
    return TensorSlice.whole(common.shape).shifted(start)
