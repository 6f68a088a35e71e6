from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reshard.core.tensor.fingerprint import box_fingerprint, box_fingerprints, combined, fingerprint_text

ITEMSIZES = (1, 2, 4, 8)


def whole(values: np.ndarray) -> int:
    return box_fingerprint(values, (0,) * values.ndim)


def plain(values: np.ndarray, start: tuple[int, ...]) -> int:
    """The definition, element by element: the weights are taken from fingerprints of single elements."""
    total = 0
    for index in np.ndindex(values.shape):
        one = np.array(values[index]).reshape((1,) * values.ndim)
        total += box_fingerprint(one, tuple(low + i for low, i in zip(start, index, strict=True)))
    return total % 2**64


@st.composite
def tensors(draw, itemsizes=ITEMSIZES, min_size=0, max_axes=4):
    """Random bits of any item size, in any order of memory, some axes with gaps."""
    itemsize = draw(st.sampled_from(itemsizes))
    axes = draw(st.integers(0, max_axes))
    most = {0: 1, 1: 3000, 2: 600, 3: 40, 4: 12}[axes]
    shape = tuple(draw(st.integers(min_size, most)) for _ in range(axes))
    while np.prod(shape) > 20_000:
        shape = tuple((length + 1) // 2 for length in shape)
    order = draw(st.permutations(range(axes)))
    gaps = tuple(draw(st.sampled_from((1, 1, 2))) for _ in range(axes))
    bits = np.random.default_rng(draw(st.integers(0, 2**32)))
    stored = [shape[axis] * gaps[axis] for axis in order]
    memory = bits.integers(0, 256, (*stored, itemsize), np.uint8).view(f"u{itemsize}").reshape(stored)
    if draw(st.booleans()):
        memory &= bits.integers(0, 2, memory.shape).astype(memory.dtype)  # many zeros
    index: tuple[Any, ...] = tuple(slice(None, None, gap) for gap in gaps)
    return memory.transpose(np.argsort(order))[(..., *index)]


def boxes(draw, shape: tuple[int, ...], most: int = 4) -> list[tuple[slice, ...]]:
    """A shape cut along some axes, each at its own places."""
    cut: list[tuple[slice, ...]] = [()]
    for length in shape:
        places = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=most))})
        runs = [slice(a, b) for a, b in pairwise(places)] or [slice(0, 0)]
        cut = [(*box, run) for box in cut for run in runs]
    return cut


@settings(max_examples=40)
@given(st.data())
def test_the_boxes_of_any_resharding_give_the_whole_tensors(data) -> None:
    values = data.draw(tensors())
    parts = (box_fingerprint(values[box], tuple(run.start for run in box)) for box in boxes(data.draw, values.shape))
    assert combined(parts) == whole(values.copy())


@settings(max_examples=30)
@given(st.data())
def test_neither_strides_nor_the_way_to_sum_up_matter(data) -> None:
    values = data.draw(tensors())
    assume(values.size <= 1500)
    start = tuple(data.draw(st.sampled_from((0, 3, 255, 256, 2**40))) for _ in values.shape)
    found = box_fingerprint(values, start)
    assert found == plain(values, start)
    assert found == box_fingerprint(values.copy(), start)
    flipped = np.flip(values).copy()
    assert found == box_fingerprint(np.flip(flipped), start)


@settings(max_examples=30)
@given(st.data())
def test_boxes_of_one_place_have_their_own_fingerprints(data) -> None:
    values = data.draw(tensors())
    boxes = np.stack([values, np.flip(values), ~values])
    start = tuple(data.draw(st.sampled_from((0, 3, 255, 256, 2**40))) for _ in values.shape)
    assert box_fingerprints(boxes, start).tolist() == [box_fingerprint(box, start) for box in boxes]
    assert box_fingerprints(boxes[:0], start).tolist() == []


@settings(max_examples=40)
@given(st.data())
def test_a_flipped_bit_changes_it(data) -> None:
    values = data.draw(tensors(min_size=1)).copy()
    before = whole(values)
    index = tuple(data.draw(st.integers(0, length - 1)) for length in values.shape)
    values[index] ^= values.dtype.type(1 << data.draw(st.integers(0, 8 * values.itemsize - 1)))
    assert whole(values) != before


@settings(max_examples=40)
@given(st.data())
def test_two_flipped_signs_change_it(data) -> None:
    """Bit 63 times two odd weights would add up to nothing."""
    values = data.draw(tensors(min_size=2)).copy()
    assume(values.size > 1)
    before = whole(values)
    first, second = data.draw(st.lists(st.integers(0, values.size - 1), min_size=2, max_size=2, unique=True))
    sign = values.dtype.type(1 << (8 * values.itemsize - 1))
    values[np.unravel_index(first, values.shape)] ^= sign
    values[np.unravel_index(second, values.shape)] ^= sign
    assert whole(values) != before


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_all_signs_flipped_change_it(itemsize: int) -> None:
    values = np.random.default_rng(1).integers(0, 256, (64, 32, itemsize), np.uint8).view(f"u{itemsize}")[..., 0]
    assert whole(values ^ values.dtype.type(1 << (8 * itemsize - 1))) != whole(values)


@settings(max_examples=40)
@given(st.data())
def test_two_boxes_that_changed_places_change_it(data) -> None:
    values = data.draw(tensors(min_size=2, max_axes=3)).copy()
    assume(values.ndim)
    axis = data.draw(st.integers(0, values.ndim - 1))
    length = data.draw(st.integers(1, values.shape[axis] // 2))
    first = data.draw(st.integers(0, values.shape[axis] - 2 * length))
    second = data.draw(st.integers(first + length, values.shape[axis] - length))
    moved = np.moveaxis(values.copy(), axis, 0)
    moved[first : first + length], moved[second : second + length] = (
        moved[second : second + length].copy(),
        moved[first : first + length].copy(),
    )
    moved = np.moveaxis(moved, 0, axis)
    assert (whole(moved) == whole(values)) == bool((moved == values).all())


@settings(max_examples=40)
@given(st.data())
def test_a_lost_or_doubled_element_changes_it_even_if_it_is_zero(data) -> None:
    values = data.draw(tensors(min_size=1)).copy()
    index = tuple(data.draw(st.integers(0, length - 1)) for length in values.shape)
    values[index] *= data.draw(st.sampled_from((0, 1)))
    one = np.array(values[index]).reshape((1,) * values.ndim)
    assert box_fingerprint(one, index) != 0


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_a_transposed_tensor_has_another(itemsize: int) -> None:
    values = np.arange(64 * 64, dtype=f"u{itemsize}").reshape(64, 64)
    assert len({whole(values), whole(values.T), whole(values.reshape(-1)), whole(values.reshape(64, 64, 1))}) == 4


def test_scalars_differ_by_value_and_from_tensors_of_one() -> None:
    scalars = [np.array(value, f"u{itemsize}") for itemsize in ITEMSIZES for value in (0, 1, 255)]
    assert [whole(scalar) for scalar in scalars[:9]] == [1, 2, 256] * 3
    assert len({whole(scalar) for scalar in scalars[9:]}) == 3
    assert all(whole(scalar.reshape(1)) != whole(scalar) for scalar in scalars)


def test_an_empty_tensor_adds_nothing() -> None:
    assert whole(np.empty((3, 0, 2), np.uint8)) == whole(np.empty(0, np.uint64)) == 0


def test_weights_are_odd_and_differ() -> None:
    zeros = np.zeros((2, 600), np.uint32)
    weights = [box_fingerprint(zeros[:1, :1], (row, column)) for row in range(2) for column in range(zeros.shape[1])]
    assert all(weight % 2 for weight in weights)
    assert len({weight % 2**33 for weight in weights}) == len(weights)


def test_stays_what_it_is() -> None:
    """Fingerprints are stored and compared with those of later versions."""
    values = np.arange(3 * 700, dtype=np.uint64).reshape(3, 700) * np.uint64(0x9E3779B97F4A7C15)
    found = [fingerprint_text(box_fingerprint(values.astype(f"u{size}"), (1, 300))) for size in ITEMSIZES]
    assert found == ["e8f9a9718c680c3b", "33fbc530fc5004a8", "0a5d68eed76435ae", "c4453ba4b8ac700f"]


@pytest.mark.parametrize("values", [np.zeros(3, np.int32), np.zeros((3, 1), np.uint32)])
def test_refuses_what_is_no_box(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"\[0\]: not a box of unsigned integers"):
        box_fingerprint(values, (0,))


@settings(max_examples=40)
@given(st.data())
def test_elements_at_equal_distances_have_the_weights_of_their_places(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]))
    shape = data.draw(st.sampled_from([(3, 40), (600, 1), (2, 600), (1, 3)]))
    steps = tuple(data.draw(st.sampled_from([1, 2, 7])) for _ in range(2))
    start = tuple(data.draw(st.sampled_from([0, 5, 300])) for _ in range(2))
    values = np.random.default_rng(1).integers(0, 256, shape).astype(dtype)
    places = {
        index: tuple(low + i * step for low, i, step in zip(start, index, steps, strict=True))
        for index in np.ndindex(shape)
    }
    wanted = combined(box_fingerprint(values[index].reshape(1, 1), place) for index, place in places.items())
    assert box_fingerprint(values, start, steps) == wanted
