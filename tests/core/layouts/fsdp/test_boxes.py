"""Boxes by placements on a mesh, held against tensors that are cut step by step as torch.chunk cuts them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reshard.core.errors import LayoutError
from reshard.core.layouts.fsdp.boxes import Placement, PlacementKind, shard_box
from reshard.core.tensor.boxes import ShardBoxes

REPLICATE = Placement(PlacementKind.REPLICATE)


def shard(dim: int) -> Placement:
    return Placement(PlacementKind.SHARD, dim)


def strided(dim: int, factor: int) -> Placement:
    return Placement(PlacementKind.STRIDED, dim, factor)


def chunk(array: np.ndarray, count: int, dim: int) -> list[np.ndarray]:
    """As torch.chunk, with empty ones at the end so that there are `count`."""
    length = array.shape[dim]
    size = max(-(-length // count), 1)
    parts = [array.take(range(low, min(low + size, length)), dim) for low in range(0, length, size)]
    return parts + [array.take([], dim)] * (count - len(parts))


def local(whole: np.ndarray, placements: list[Placement], sizes: list[int], coordinates: tuple[int, ...]) -> np.ndarray:
    """What a rank has: it cuts its own part of what is left, axis by axis, those of strided shards when they may."""
    rest = list(range(len(sizes)))
    array = whole
    while rest:
        axis = next(
            each
            for each in rest
            if placements[each].kind is not PlacementKind.STRIDED
            or not any(other > each and placements[other] == shard(placements[each].dim) for other in rest)
        )
        rest.remove(axis)
        if placements[axis] != REPLICATE:
            array = chunk(array, sizes[axis], placements[axis].dim)[coordinates[axis]]
    return array


@st.composite
def placed(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Placement], list[int]]:
    shape = draw(st.lists(st.integers(0, 11), min_size=1, max_size=3))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    cut = st.tuples(st.integers(-1, len(shape) - 1), st.booleans())
    cuts = draw(st.lists(cut, min_size=len(sizes), max_size=len(sizes)))
    placements = []
    for axis, (dim, is_strided) in enumerate(cuts):
        right = [size for size, each in zip(sizes[axis + 1 :], cuts[axis + 1 :], strict=True) if each == (dim, False)]
        placed_there = strided(dim, math.prod(right)) if is_strided else shard(dim)
        placements.append(REPLICATE if dim < 0 else placed_there)
    return tuple(shape), placements, sizes


def divided_twice_unevenly(shape: tuple[int, ...], placements: list[Placement], sizes: list[int]) -> bool:
    """True where PyTorch's rule for strided shards is another than what FSDP does."""
    for axis, each in enumerate(placements):
        right = [
            size
            for size, other in zip(sizes[axis + 1 :], placements[axis + 1 :], strict=True)
            if other == shard(each.dim)
        ]
        several = sum(size > 1 for size in right) > 1
        if each.kind is PlacementKind.STRIDED and several and shape[each.dim] % math.prod(right):
            return True
    return False


@given(placed())
def test_boxes_are_what_ranks_cut_and_tile_the_tensor(case: tuple[tuple[int, ...], list[Placement], list[int]]) -> None:
    shape, placements, sizes = case
    whole = np.arange(math.prod(shape)).reshape(shape)
    boxes = []
    assume(not divided_twice_unevenly(shape, placements, sizes))
    for coordinates in itertools.product(*map(range, sizes)):
        box = shard_box(shape, placements, tuple(sizes), coordinates)
        want = local(whole, placements, sizes, coordinates)
        assert box.shape == want.shape
        assert (whole[box.as_index()] == want).all()
        boxes.append(box)
    ShardBoxes(shape, tuple(enumerate(boxes))).check_tiling()


def test_later_ranks_have_less_or_nothing() -> None:
    assert [shard_box((37,), [shard(0)], (3,), (c,)).shape for c in range(3)] == [(13,), (13,), (11,)]
    assert [shard_box((2,), [shard(0)], (3,), (c,)).shape for c in range(3)] == [(1,), (1,), (0,)]
    assert shard_box((2,), [shard(0)], (3,), (2,)).start == (2,)


def test_tensor_parallelism_inside_fsdp_comes_first() -> None:
    placements = [strided(0, 2), shard(0)]
    starts = {c: shard_box((8,), placements, (2, 2), c).start for c in itertools.product((0, 1), (0, 1))}
    assert starts == {(0, 0): (0,), (0, 1): (4,), (1, 0): (2,), (1, 1): (6,)}


def test_what_several_axes_divide_unevenly_before_fsdp_is_refused() -> None:
    """PyTorch would put the second of these shards elsewhere than FSDP."""
    placements = [strided(0, 12), shard(0), shard(0)]
    assert shard_box((12,), placements, (3, 3, 4), (0, 1, 0)).start == (4,)
    with pytest.raises(LayoutError, match="its dimension 0 is divided unevenly by several axes before FSDP's"):
        shard_box((13,), placements, (3, 3, 4), (0, 1, 0))


def test_a_strided_shard_of_something_else_is_refused() -> None:
    message = r"it is a _StridedShard\(0, 2\), but there are 4 shards of the dimension to its right"
    with pytest.raises(LayoutError, match=message):
        shard_box((8,), [strided(0, 2), shard(0)], (2, 4), (0, 0))
    with pytest.raises(LayoutError, match="there are 1 shards"):
        shard_box((8, 8), [strided(0, 2), shard(1)], (2, 2), (0, 0))
