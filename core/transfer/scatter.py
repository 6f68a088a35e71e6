"""Puts what was read for a part into its place: values apart from what lies between them, turned, cast."""

import numpy as np

from reshard.core.plan.plan import ParameterPlan
from reshard.core.tensor.casting import Overflow, cast_into, find_overflow
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape
from reshard.core.tensor.tiling import copy_transposed
from reshard.core.transfer.file_blocks import Part
from reshard.core.transfer.read_ranges import Span

_UINT_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def place_values(
    run: np.ndarray, span: Span, part: Part, parameter: ParameterPlan, buffer: np.ndarray
) -> Overflow | None:
    """Copies the elements of a span that are wanted to where they belong in a block's buffer, both arrays of bytes.

    Returns what overflowed if they are cast, with its index in the whole parameter.
    """
    dtype = _UINT_OF_SIZE[parameter.dtype.itemsize]
    target = np.ndarray(part.box.shape, dtype, buffer, part.position)[(..., *span.index)]  # of a scalar a view, too
    if span.dtype is not None:
        return _cast(run, span, span.dtype, part, parameter, target)
    values = np.ndarray(target.shape, dtype, run, strides=span.strides)
    if span.transposed:
        copy_transposed(values, target)
    else:
        target[...] = values
    return None


def _cast(
    run: np.ndarray, span: Span, dtype: DType, part: Part, parameter: ParameterPlan, target: np.ndarray
) -> Overflow | None:
    first = span.target_offset // parameter.dtype.itemsize
    if span.strides is None:
        target = target.reshape(-1)[first : first + span.length // dtype.itemsize]
    values = np.ndarray(target.shape, _UINT_OF_SIZE[dtype.itemsize], run, strides=span.strides)
    found = None
    if cast_into(values, dtype, parameter.dtype, target):
        found = find_overflow(values, dtype, parameter.dtype)
    if found is None:
        return None
    if span.strides is None:
        inner = tuple(map(int, np.unravel_index(first + found.first[0], part.box.shape)))
    else:
        inner = tuple(place.start + low for place, low in zip(span.index, found.first, strict=True))
    return Overflow(found.count, found.largest, _in_whole(inner, part, parameter))


def _in_whole(index: Shape, part: Part, parameter: ParameterPlan) -> Shape:
    """An index in a part as one in the whole parameter."""
    return tuple(map(sum, zip(index, part.box.start, parameter.box.start, strict=True)))
