"""Which box of a DTensor a rank has, by PyTorch's rules: it lies on a mesh of ranks, by a placement for each axis.

From left to right, each axis of the mesh that a dimension is sharded over divides what there still is of it, into
chunks of equal length, rounded up: the last ones may be shorter, or empty. A strided shard divides after the plain ones
of its dimension to its right: tensor parallelism inside FSDP, whose axis of the mesh comes first.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from reshard.core.errors import LayoutError
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape, TensorSlice


class PlacementKind(StrEnum):
    """What an axis of the mesh does to a tensor."""

    REPLICATE = "Replicate"
    SHARD = "Shard"
    STRIDED = "_StridedShard"


class Placement(Record):
    """A tensor's placement along an axis of the mesh.

    Attributes:
        dim: the dimension that is sharded.
        split_factor: of a strided shard, how many shards the axes to its right make of the dimension.
    """

    kind: PlacementKind
    dim: int = 0
    split_factor: int = 1

    def __str__(self) -> str:
        match self.kind:
            case PlacementKind.REPLICATE:
                return "Replicate()"
            case PlacementKind.SHARD:
                return f"Shard({self.dim})"
        return f"_StridedShard({self.dim}, {self.split_factor})"


def sharding_order(shape: Shape, placements: Sequence[Placement], sizes: Shape) -> list[int]:
    """Return the axes of a mesh of `sizes` that shard a tensor of `shape`, in the order in which they do.

    Raises:
        LayoutError: a strided shard is not one of tensor parallelism inside FSDP.
    """
    order: list[tuple[int, bool, int]] = []
    for axis, placement in enumerate(placements):
        if placement.kind is PlacementKind.REPLICATE:
            continue
        is_strided = placement.kind is PlacementKind.STRIDED
        right = _shards_after(placements, axis, placement.dim) if is_strided else []
        shards = math.prod(sizes[each] for each in right)
        if placement.split_factor != shards:
            raise LayoutError(f"it is a {placement}, but there are {shards} shards of the dimension to its right")
        if sum(sizes[each] > 1 for each in right) > 1 and shape[placement.dim] % shards:
            # FSDP divides what each axis has left, PyTorch's own rule for this placement the product of all at once
            raise LayoutError(f"its dimension {placement.dim} is divided unevenly by several axes before FSDP's")
        order.append((right[-1] if right else axis, is_strided, axis))
    return [axis for _, _, axis in sorted(order)]


def shard_box(shape: Shape, placements: Sequence[Placement], sizes: Shape, coordinates: Shape) -> TensorSlice:
    """Return the box of a tensor of `shape` that the rank at `coordinates` of a mesh of `sizes` has.

    Raises:
        LayoutError: a strided shard is not one of tensor parallelism inside FSDP.
    """
    start, length = [0] * len(shape), list(shape)
    for axis in sharding_order(shape, placements, sizes):
        dim = placements[axis].dim
        chunk = -(-length[dim] // sizes[axis])
        offset = min(coordinates[axis] * chunk, length[dim])
        start[dim] += offset
        length[dim] = min(chunk, length[dim] - offset)
    stop = tuple(low + count for low, count in zip(start, length, strict=True))
    return TensorSlice(tuple(start), stop)


def _shards_after(placements: Sequence[Placement], axis: int, dim: int) -> list[int]:
    """The axes after one with plain shards of a dimension."""
    plain = Placement(PlacementKind.SHARD, dim)
    return [each for each in range(axis + 1, len(placements)) if placements[each] == plain]
