"""Boxes and their bytes, against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.tensor.slices import Extent, TensorSlice, bounding_extent, contiguous_axis, contiguous_boxes

shapes = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> TensorSlice:
    start = tuple(draw(st.integers(0, length - 1)) for length in shape)
    stop = tuple(draw(st.integers(low + 1, length)) for low, length in zip(start, shape, strict=True))
    return TensorSlice(start, stop)


@given(st.data())
def test_span_and_contiguity_are_those_of_the_flat_positions(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    box = data.draw(boxes_in(shape))
    positions = np.arange(np.prod(shape, dtype=int)).reshape(shape)[box.as_index()].reshape(-1)
    assert bounding_extent(box, shape, 4) == Extent(positions[0] * 4, (positions[-1] - positions[0] + 1) * 4)
    assert (contiguous_axis(box, shape) == 0) == (positions[-1] - positions[0] + 1 == len(positions))


@given(st.data())
def test_intersection_is_what_both_masks_cover(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    one, other = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    mask = np.zeros(shape, dtype=int)
    mask[one.as_index()] += 1
    mask[other.as_index()] += 1
    both = one.intersect(other)
    assert (mask == 2).sum() == (both.size if both else 0)
    if both:
        assert (mask[both.as_index()] == 2).all()
        inner = both.relative_to(one)
        tensor = np.arange(mask.size).reshape(shape)
        np.testing.assert_array_equal(tensor[one.as_index()][inner.as_index()], tensor[both.as_index()])
        assert one.contains(both)


@given(st.data())
def test_contiguous_boxes_make_up_the_range(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    tensor = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    start = data.draw(st.integers(0, tensor.size))
    stop = data.draw(st.integers(start, tensor.size))
    most = data.draw(st.integers(1, 40))
    boxes = list(contiguous_boxes(shape, start, stop, most))
    assert [value for box in boxes for value in np.ravel(tensor[box.as_index()])] == list(range(start, stop))
    assert all(box.size <= most and contiguous_axis(box, shape) == 0 for box in boxes)


def test_a_whole_tensor_that_fits_is_one_box() -> None:
    assert list(contiguous_boxes((4, 5, 6), 0, 120, 120)) == [TensorSlice.whole((4, 5, 6))]
    assert [box.shape for box in contiguous_boxes((4, 5, 6), 0, 120, 60)] == [(2, 5, 6), (2, 5, 6)]


def test_boxes_that_are_none() -> None:
    with pytest.raises(ValueError, match="different numbers of axes"):
        TensorSlice((0,), (1, 2))
    with pytest.raises(ValueError, match="not a box"):
        TensorSlice((2,), (1,))
    with pytest.raises(ValueError, match="does not lie inside"):
        TensorSlice((0,), (3,)).relative_to(TensorSlice((1,), (4,)))


def test_a_box_in_other_coordinates_and_back() -> None:
    box, origin = TensorSlice((1, 2), (3, 5)), (10, 20)
    assert box.shifted(origin) == TensorSlice((11, 22), (13, 25))
    assert box.shifted(origin).relative_to(TensorSlice(origin, (20, 30))) == box
