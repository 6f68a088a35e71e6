"""Optimizer parallel as MindSpore writes it: which parameters it shards, and how layouts record it.

A parameter with replicas on several devices is sharded over them along axis 0, within its model-parallel shard. It
stays whole if axis 0 does not divide by both together, if it is small (MindSpore's `parallel_optimizer_threshold`), or
if the network says so, which only a strategy of the network shows. Optimizer states are sharded like their parameter,
whatever their own size.
"""

from math import prod

from msgspec.structs import replace

from reshard.core.errors import LayoutError
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.tensor.slices import Shape


def without_optimizer_shard(layout: ParameterLayout) -> ParameterLayout:
    """Return the layout as model parallel alone shards the parameter."""
    return replace(layout, optimizer_shard_step=0, optimizer_shard_size=0)


def has_optimizer_shard(layout: ParameterLayout) -> bool:
    """True if optimizer parallel shards the parameter."""
    return layout.optimizer_shard_size != 0 and layout.optimizer_shard_step != 0


def replica_count(layout: ParameterLayout) -> int:
    """Number of devices in a stage with the same slice of a parameter, leaving aside optimizer shards."""
    matrix = layout.device_matrix
    named = {axis for axes in layout.tensor_map for axis in axes}
    return prod(size for axis, size in enumerate(reversed(matrix)) if axis not in named)


def scaled_shard_size(layout: ParameterLayout) -> int:
    """Return the optimizer shard's size for other numbers of devices, -1 for one shard per replica.

    A size below the number of replicas is a limit set by the job (`optimizer_weight_shard_size`), and kept.
    """
    size = layout.optimizer_shard_size
    return ALL_REPEATED_AXES if size == replica_count(layout) else size


def with_optimizer_shard(layout: ParameterLayout, shape: Shape | None, size: int) -> ParameterLayout | None:
    """Return the layout with `size` optimizer shards, -1 for one per replica; None where MindSpore would not shard.

    `shape` is the whole tensor's, if known.
    """
    replicas = replica_count(layout)
    pieces = replicas if size == ALL_REPEATED_AXES else size
    if replicas < 2 or replicas % pieces or not layout.tensor_map or shape == ():
        return None
    base = without_optimizer_shard(layout)
    axis_count = len(layout.tensor_map) if shape is None else len(shape)
    ranks = next(iter(base.shard_grid(axis_count).owners.values()))
    step = (ranks[-1] - ranks[0]) // (len(ranks) - 1)
    cut = replace(base, optimizer_shard_step=step, optimizer_shard_size=size)
    try:
        whole = cut.shard_grid(axis_count)
        if shape is not None:
            whole.bounds(shape)
    except LayoutError:
        return None
    return cut
