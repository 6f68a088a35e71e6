"""Boxes that tile a tensor, or do not; and finding those that overlap another."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import LayoutError
from reshard.core.tensor.boxes import BoxFinder, ShardBoxes, check_tiling
from reshard.core.tensor.layout import boxes_layout
from reshard.core.tensor.slices import Shape, TensorSlice

SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@st.composite
def tilings(draw: st.DrawFn, shape: Shape | None = None) -> tuple[Shape, list[TensorSlice]]:
    """A tensor divided by cuts through one box after another, in any order: not a grid."""
    shape = draw(SHAPES) if shape is None else shape
    boxes = [TensorSlice.whole(shape)]
    for _ in range(draw(st.integers(0, 8)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(box.start[axis], box.stop[axis]))
        low, high = list(box.stop), list(box.start)
        low[axis] = high[axis] = at
        boxes += [TensorSlice(box.start, tuple(low)), TensorSlice(tuple(high), box.stop)]
    return shape, draw(st.permutations(boxes))


def boxes_of(shape: Shape, boxes: list[TensorSlice]) -> ShardBoxes:
    return ShardBoxes(shape, tuple(enumerate(boxes)))


def counted(shape: Shape, boxes: list[TensorSlice]) -> np.ndarray:
    counts = np.zeros(shape, dtype=int)
    for box in boxes:
        counts[box.as_index()] += 1
    return counts


@given(tilings())
def test_a_divided_tensor_is_tiled(tiling: tuple[Shape, list[TensorSlice]]) -> None:
    boxes_of(*tiling).check_tiling()


@given(tilings(), st.data())
def test_the_first_element_that_is_not_in_exactly_one_box_is_named(
    tiling: tuple[Shape, list[TensorSlice]], data: st.DataObject
) -> None:
    shape, boxes = tiling
    boxes = [*boxes]
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            boxes.pop(data.draw(st.integers(0, len(boxes) - 1))) if boxes else None
        else:
            start = tuple(data.draw(st.integers(0, length)) for length in shape)
            stop = tuple(data.draw(st.integers(low, length)) for low, length in zip(start, shape, strict=True))
            boxes.append(TensorSlice(start, stop))
    counts = counted(shape, boxes)
    wrong = [index for index in itertools.product(*map(range, shape)) if counts[index] != 1]
    if not wrong:
        check_tiling(boxes, shape)
        return
    says = "incomplete" if counts[wrong[0]] == 0 else f"is in {counts[wrong[0]]} of them"
    with pytest.raises(LayoutError) as refused:
        check_tiling(boxes, shape)
    assert f"element {list(wrong[0])} of {list(shape)}" in str(refused.value)
    assert says in str(refused.value)


def test_a_box_outside_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"the box \[0:3\] \(number 0\) does not lie in its shape \[2\]"):
        boxes_of((2,), [TensorSlice((0,), (3,))]).check_tiling()
    with pytest.raises(LayoutError, match="does not lie in its shape"):
        boxes_of((2, 2), [TensorSlice((0,), (2,))]).check_tiling()


def test_boxes_that_divide_very_many_axes_are_refused() -> None:
    shape = (2,) * 9
    halves = [TensorSlice(tuple(int(axis == each) for each in range(9)), shape) for axis in range(9)]
    with pytest.raises(LayoutError, match="divide 9 axes, reshard allows 8"):
        boxes_of(shape, halves).check_tiling()


@given(tilings(), st.data())
def test_found_boxes_fill_the_wanted_one_once(tiling: tuple[Shape, list[TensorSlice]], data: st.DataObject) -> None:
    shape, boxes = tiling
    start = tuple(data.draw(st.integers(0, length)) for length in shape)
    stop = tuple(data.draw(st.integers(low, length)) for low, length in zip(start, shape, strict=True))
    wanted = TensorSlice(start, stop)
    seen = np.zeros(shape, dtype=int)
    for number, common in BoxFinder(boxes).overlapping(wanted):
        assert boxes[number].contains(common)
        seen[common.as_index()] += 1
    expected = np.zeros(shape, dtype=int)
    expected[wanted.as_index()] = 1
    np.testing.assert_array_equal(seen, expected)


@given(tilings())
def test_a_layout_of_boxes_gives_each_rank_its_own(tiling: tuple[Shape, list[TensorSlice]]) -> None:
    shape, boxes = tiling[0], [*dict.fromkeys(tiling[1])]
    listed = ShardBoxes(shape, tuple((2 * rank, box) for rank, box in enumerate(boxes)))
    layout = boxes_layout(listed, 2 * len(boxes) + 1)
    grid = layout.shard_grid(len(shape))
    assert layout.is_uneven
    assert not grid.is_whole
    assert grid.device_count == 2 * len(boxes) + 1
    assert [grid.box_of(rank, shape) for rank, _ in listed.owned] == boxes
    assert list(grid.owners.values()) == [(rank,) for rank, _ in listed.owned]
    assert all(grid.whole_shape(rank, box.shape) == shape for rank, box in listed.owned)
    assert not any(grid.box_of(rank, shape).size and shape for rank in range(1, grid.device_count, 2))


@given(tilings(), st.data())
def test_ranks_with_the_same_box_own_replicas(tiling: tuple[Shape, list[TensorSlice]], data: st.DataObject) -> None:
    shape, boxes = tiling
    owned = data.draw(st.permutations([box for box in {*boxes} for _ in range(data.draw(st.integers(1, 3)))]))
    listed = ShardBoxes(shape, tuple(enumerate(owned)))
    listed.check_tiling()
    grid = boxes_layout(listed, len(owned)).shard_grid(len(shape))
    assert sorted(rank for ranks in grid.owners.values() for rank in ranks) == [*range(len(owned))]
    for cell, ranks in grid.owners.items():
        assert [rank for rank, box in enumerate(owned) if box == grid.box_of(ranks[0], shape)] == [*ranks]
        assert {grid.cell_of(rank) for rank in ranks} == {cell}


def test_what_does_not_fit_boxes_is_refused() -> None:
    layout = boxes_layout(ShardBoxes((4, 2), ((0, TensorSlice.whole((4, 2))),)), 1)
    with pytest.raises(LayoutError, match="has 2 tensor axes, the tensor has 1"):
        layout.shard_grid(1)
    with pytest.raises(LayoutError, match=r"its shape is \[4, 3\], its boxes are of a tensor of \[4, 2\]"):
        layout.shard_grid(2).bounds((4, 3))
    with pytest.raises(LayoutError, match=r"does not have the shape of its shard, \[2, 2\]"):
        layout.shard_grid(2).whole_shape(0, (2, 2))
    with pytest.raises(LayoutError, match="of ranks up to 1, of 1 devices"):
        boxes_layout(ShardBoxes((1,), ((1, TensorSlice.whole((1,))),)), 1).shard_grid(1)


def test_equal_boxes_are_one_key() -> None:
    one, other = (ShardBoxes((2,), ((0, TensorSlice((0,), (2,))),)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != ShardBoxes((2,), ((1, TensorSlice((0,), (2,))),))


def test_more_corners_than_fit_into_memory_are_refused() -> None:
    boxes = [TensorSlice((number,) * 8, (number + 1,) * 8) for number in range(2**13 + 1)]
    with pytest.raises(LayoutError, match="8193 shards that divide 8 axes: these have more than the 2097152 corners"):
        boxes_of((2**14,) * 8, boxes).check_tiling()
