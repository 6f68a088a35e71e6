"""Basic indexes select what they select of a numpy array."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from reshard.core.errors import IndexingError
from reshard.core.tensor.indexing import select
from reshard.core.tensor.slices import Shape

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def selected(array: np.ndarray, index: Any) -> Any:
    selection = select(index, array.shape)
    return array[selection.box.as_index()][selection.arrange]


@st.composite
def indexed_arrays(draw: st.DrawFn) -> tuple[np.ndarray, Any]:
    shape: Shape = draw(SHAPES)
    index = draw(st_numpy.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    return np.arange(int(np.prod(shape))).reshape(shape), index


@given(indexed_arrays())
def test_as_numpy(case: tuple[np.ndarray, Any]) -> None:
    array, index = case
    wanted, found = array[index], selected(array, index)
    assert type(found) is type(wanted)
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)


@given(st.integers(0, 6), st.lists(st.none() | st.integers(-9, 9), min_size=3, max_size=3))
def test_slices_beyond_the_ends(length: int, bounds: list[int | None]) -> None:
    start, stop, step = bounds
    index = slice(start, stop, step or None)
    assert selected(np.arange(length), index).tolist() == np.arange(length)[index].tolist()


def test_integers_of_numpy() -> None:
    array = np.arange(6).reshape(2, 3)
    assert selected(array, (np.int64(1), np.array(2))) == 5
    assert selected(array, slice(np.int8(0), np.int64(1))).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (2, "index 2 is out of bounds for axis 0 with size 2"),
        ((0, -4), "index -4 is out of bounds for axis 1 with size 3"),
        ((0, 0, 0), "too many indices: it is 2-dimensional, but 3 were indexed"),
        ((..., 0, ...), "an index can only have a single ellipsis"),
        ([0, 1], r"cannot index by a list: only by integers, slices, '\.\.\.' and None.* tensor\[:\]\[mask\]"),
        (np.array([True, False]), "cannot index by a ndarray.* read it first"),
        (True, "cannot index by a bool"),
        (np.True_, "cannot index by a bool"),
        (1.0, "cannot index by a float"),
        ("w", "cannot index by a str"),
        (slice(0, 1.5), "slice indices must be integers"),
        (slice(0, 1, 0), "slice step cannot be zero"),
    ],
)
def test_refusals(index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message) as caught:
        select(index, (2, 3))
    assert isinstance(caught.value, IndexingError)
