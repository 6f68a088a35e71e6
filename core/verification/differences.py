"""Locates and measures the differences of two tensors of one shape, reading both block by block."""

import math
from collections.abc import Callable

import numpy as np

from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import NUMPY_TYPES, cast_bits, typed
from reshard.core.tensor.dtypes import MAP_TENSOR, DType
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes

_BLOCK_BYTES = 2**20
"""Bytes of one tensor at a time; working on them takes several times as much."""

Read = Callable[[TensorSlice], np.ndarray]
"""Reads a box's elements, as unsigned integers of its shape; valid until the next call."""


class Located(Record):
    """Where two tensors differ.

    Attributes:
        count: the number of elements with different bits.
        first: index of the first of them in the whole tensor.
        largest: the largest absolute difference of floating-point elements, NaN aside; None if there is none, or for
            other tensors.
        index: index of the largest difference; `first` if there is none.
        values: the two elements at that index; None if they must not be shown.
        nan_count: elements that are NaN in one tensor only.
    """

    count: int
    first: Shape
    largest: float | None
    index: Shape
    values: tuple[str, str] | None
    nan_count: int


def locate(shape: Shape, read_a: Read, dtype_a: DType, read_b: Read, dtype_b: DType) -> Located | None:
    """Locate the differences of two tensors of a shape; None if they are equal.

    If their floating-point types differ, elements of the wider one are cast first.
    """
    common = common_float(dtype_a, dtype_b)
    itemsize = max(dtype_a.itemsize, dtype_b.itemsize)
    found: Located | None = None
    for box in contiguous_boxes(shape, 0, math.prod(shape), _BLOCK_BYTES // itemsize):
        a, b = _as(read_a(box), dtype_a, common), _as(read_b(box), dtype_b, common)
        here = _located(box, a, b, common)
        if here is not None:
            found = here if found is None else _joined(found, here)
    return found


def common_float(dtype_a: DType, dtype_b: DType) -> DType:
    """The dtype that two tensors are compared in: the narrower floating-point type, or else the second."""
    return dtype_a if dtype_a.itemsize < dtype_b.itemsize else dtype_b


def _as(values: np.ndarray, dtype: DType, wanted: DType) -> np.ndarray:
    return values if dtype is wanted else cast_bits(values, dtype, wanted)


def _located(box: TensorSlice, a: np.ndarray, b: np.ndarray, dtype: DType) -> Located | None:
    differ = (a != b).reshape(-1)
    count = int(np.count_nonzero(differ))
    if not count:
        return None
    places = np.flatnonzero(differ)
    one, other = (typed(values.reshape(-1)[places], dtype) for values in (a, b))
    chosen, largest, nan_count = 0, None, 0
    if dtype.is_float:
        chosen, largest, nan_count = _farthest(one, other)
    return Located(
        count,
        _index(box, int(places[0])),
        largest,
        _index(box, int(places[chosen])),
        (_format_value(one[chosen], dtype), _format_value(other[chosen], dtype)),
        nan_count,
    )


def _farthest(one: np.ndarray, other: np.ndarray) -> tuple[int, float | None, int]:
    """The pair that is farthest apart, its distance, and the number of pairs with one NaN."""
    with np.errstate(all="ignore"):  # even casting a signaling NaN warns
        one, other = one.astype(np.float64), other.astype(np.float64)
        distance = np.abs(one - other)
    nan_one, nan_other = np.isnan(one), np.isnan(other)
    distance[nan_one | nan_other] = -1.0
    chosen = int(np.argmax(distance))
    largest = float(distance[chosen])
    return chosen, largest if largest >= 0 else None, int(np.count_nonzero(nan_one ^ nan_other))


def _joined(one: Located, other: Located) -> Located:
    """Combine two findings; `one` is of earlier elements."""
    farther = other if other.largest is not None and (one.largest is None or other.largest > one.largest) else one
    return Located(
        one.count + other.count,
        one.first,
        farther.largest,
        farther.index,
        farther.values,
        one.nan_count + other.nan_count,
    )


def _index(box: TensorSlice, place: int) -> Shape:
    inside = np.unravel_index(place, box.shape) if box.shape else ()
    return tuple(low + int(index) for low, index in zip(box.start, inside, strict=True))


def _format_value(value: np.generic, dtype: DType) -> str:
    if dtype.name not in NUMPY_TYPES or dtype is MAP_TENSOR:
        return f"0x{int(value):02x}"
    return str(value)
