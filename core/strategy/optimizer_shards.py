"""Optimizer parallel as MindSpore writes it: which parameters it cuts, and what their layouts say of it.

A parameter whose copies are on several devices is cut along axis 0 by these, inside what model parallel cuts. It stays
as it is where axis 0 does not divide by both together, where it is small (MindSpore's `parallel_optimizer_threshold`),
and where the network says so, of which only a strategy of the network tells. An optimizer's states are cut as their
parameter is, whatever their own size.
"""

from dataclasses import replace
from math import prod

from reshard.core.errors import LayoutError
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.tensor.slices import Shape


def without_optimizer_shard(layout: ParameterLayout) -> ParameterLayout:
    """The layout of a parameter that model parallel alone cuts."""
    return replace(layout, optimizer_shard_step=0, optimizer_shard_size=0)


def has_optimizer_shard(layout: ParameterLayout) -> bool:
    """Whether an optimizer shard cuts a parameter."""
    return layout.optimizer_shard_size != 0 and layout.optimizer_shard_step != 0


def replica_count(layout: ParameterLayout) -> int:
    """On how many devices of a stage the same piece of a parameter is, were there no optimizer shard."""
    matrix = layout.device_matrix
    named = {axis for axes in layout.tensor_map for axis in axes}
    return prod(size for axis, size in enumerate(reversed(matrix)) if axis not in named)


def scaled_shard_size(layout: ParameterLayout) -> int:
    """The size of an optimizer shard with other numbers of devices, -1 for all copies.

    A size below the number of copies is a limit that the job sets (`optimizer_weight_shard_size`), and kept.
    """
    size = layout.optimizer_shard_size
    return ALL_REPEATED_AXES if size == replica_count(layout) else size


def with_optimizer_shard(layout: ParameterLayout, shape: Shape | None, size: int) -> ParameterLayout | None:
    """The layout with an optimizer shard of `size` pieces, -1 for all copies; None where MindSpore would not cut.

    `shape` is that of the whole tensor, if it is known.
    """
    copies = replica_count(layout)
    pieces = copies if size == ALL_REPEATED_AXES else size
    if copies < 2 or copies % pieces or not layout.tensor_map or shape == ():
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
