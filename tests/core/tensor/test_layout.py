"""Layouts to boxes: against literal splitting, and every refusal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import LayoutError
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from tests.support.plans import as_layout
from tests.support.reference import AXIS_LENGTH, DEVICE_COUNTS, layouts, shard_of, wholes


@given(st.data())
def test_boxes_are_what_literal_splitting_gives(data: st.DataObject) -> None:
    devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    axis_count = data.draw(st.integers(1, 3))
    random = data.draw(layouts(devices, axis_count))
    [whole] = wholes([(AXIS_LENGTH,) * axis_count])
    cut = as_layout(random).shard_grid(axis_count)
    seen = np.zeros(whole.shape, dtype=int)
    for rank in range(devices):
        box = cut.box_of(rank, whole.shape)
        np.testing.assert_array_equal(whole[box.as_index()], shard_of(whole, random, rank))
        assert cut.whole_shape(rank, box.shape) == whole.shape
        assert rank in cut.owners[cut.cell_of(rank)]
        seen[box.as_index()] += 1
    assert seen.min() == seen.max() == devices // len(cut.owners)


@given(st.data())
def test_folding_the_optimizer_shard_keeps_every_shard_where_it_is(data: st.DataObject) -> None:
    devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    axis_count = data.draw(st.integers(1, 3))
    layout = as_layout(data.draw(layouts(devices, axis_count)))
    folded = layout.folded(axis_count)
    assert (folded.optimizer_shard_step, folded.optimizer_shard_size) == (0, 0)
    assert folded.device_count == devices
    before, after = layout.shard_grid(axis_count), folded.shard_grid(axis_count)
    assert after == before
    np.testing.assert_array_equal(after.cells, before.cells)


def test_an_axis_that_is_used_in_part_is_split_in_two() -> None:
    layout = ParameterLayout((4, 2), ((0,), ()), nested=True, optimizer_shard_step=2, optimizer_shard_size=2)
    folded = layout.folded(2)
    assert (folded.device_matrix, folded.tensor_map) == ((2, 2, 2), ((0, 1), ()))


def test_all_repeated_axes_is_the_product_of_them() -> None:
    everything = ParameterLayout((2, 3, 2), ((1,), ()), True, optimizer_shard_step=1, optimizer_shard_size=-1)
    counted = ParameterLayout((2, 3, 2), ((1,), ()), True, optimizer_shard_step=1, optimizer_shard_size=4)
    assert everything.shard_grid(2).pieces == counted.shard_grid(2).pieces == (12, 1)
    assert (everything.shard_grid(2).cells == counted.shard_grid(2).cells).all()


@pytest.mark.parametrize(("step", "size"), [(0, 4), (4, 0), (0, -1)])
def test_step_or_size_zero_is_no_optimizer_shard(step: int, size: int) -> None:
    layout = ParameterLayout((4, 2), ((0,),), optimizer_shard_step=step, optimizer_shard_size=size)
    assert layout.shard_grid(1).pieces == (2,)


def test_flat_list_of_two_is_a_nested_map_for_a_vector() -> None:
    layout = ParameterLayout((2, 3), ((1,), (0,)))
    assert layout.shard_grid(2).pieces == (2, 3)
    assert layout.shard_grid(1).pieces == (6,)


def test_uneven_lengths() -> None:
    layout = ParameterLayout((3,), ((0,), ()), param_split_shape=(5, 2, 4), field=1)
    boxes = [layout.shard_grid(2).box_of(rank, (11, 8)) for rank in range(3)]
    assert [str(box) for box in boxes] == ["[0:5, 0:8]", "[5:7, 0:8]", "[7:11, 0:8]"]
    assert layout.shard_grid(2).whole_shape(1, (2, 8)) == (11, 8)


def test_uneven_lengths_with_an_optimizer_shard_inside() -> None:
    layout = ParameterLayout((2, 2), ((0,), ()), True, 2, 2, param_split_shape=(6, 2))
    boxes = [str(layout.shard_grid(2).box_of(rank, (8, 3))) for rank in range(4)]
    assert boxes == ["[0:3, 0:3]", "[6:7, 0:3]", "[3:6, 0:3]", "[7:8, 0:3]"]


def test_scalar_is_held_whole_by_all() -> None:
    cut = ParameterLayout((2, 2), ()).shard_grid(0)
    assert [cut.box_of(rank, ()).size for rank in range(4)] == [1, 1, 1, 1]
    assert whole_layout(2, 3).shard_grid(2).is_whole


@pytest.mark.parametrize(
    ("layout", "axis_count", "message"),
    [
        (ParameterLayout((2,), ((0,), ())), 3, "has 2 tensor axes, the tensor has 3"),
        (ParameterLayout((2,), ((0,), ())), 1, "has 2 tensor axes, the tensor has 1"),
        (ParameterLayout((2,), ((1,),)), 1, "names device axis 1"),
        (ParameterLayout((2, 2), ((0,), (0,)), True), 2, "names a device axis twice"),
        (ParameterLayout((2, 0), ((0,),)), 1, "device matrix is"),
        (ParameterLayout((4,), ((0,),), False, 1, 2), 1, "no device axis is left"),
        (ParameterLayout((4, 2), ((0,),), False, 2, 3), 1, "size 3 cannot be taken"),
        (ParameterLayout((4, 2), ((0,),), False, 2, 8), 1, "size 8 cannot be taken"),
        (ParameterLayout((4, 2), ((0,),), False, 1, 2), 1, "has step 1, not 2"),
        (ParameterLayout((2, 3, 2), ((0,),), True, 2, -2), 1, "size -2 cannot be taken"),
        (ParameterLayout((2,), (), False, 1, 2), 0, "no axis that could be cut"),
        (ParameterLayout((2,), ((0,),), param_split_shape=(1, 2, 3)), 1, "one length for each piece"),
        (ParameterLayout((2, 2), ((0,),), True, 2, 2, param_split_shape=(3, 2)), 1, "does not divide"),
    ],
)
def test_layouts_that_contradict_themselves(layout: ParameterLayout, axis_count: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layout.shard_grid(axis_count)


def test_shape_that_does_not_divide() -> None:
    with pytest.raises(LayoutError, match="axis 1 has 7 elements, which 2 devices cannot share evenly"):
        ParameterLayout((2,), ((), (0,))).shard_grid(2).bounds((4, 7))


def test_uneven_shard_of_the_wrong_length() -> None:
    cut = ParameterLayout((2,), ((0,),), param_split_shape=(3, 5)).shard_grid(1)
    with pytest.raises(LayoutError, match="gives this rank 3 rows, its shard has shape"):
        cut.whole_shape(0, (4,))
    with pytest.raises(LayoutError, match="axis 0 has 9 elements"):
        cut.bounds((9,))
