"""Copies the wanted elements of a read range into a block: strided, transposed or cast."""

import numpy as np

from reshard.core.plan.model import ParameterPlan
from reshard.core.tensor.casting import Overflow, cast_into, find_overflow
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.tiling import copy_transposed
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import ReadRange

_UINT_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def scatter_values(
    run: np.ndarray, read_range: ReadRange, chunk: Chunk, parameter: ParameterPlan, buffer: np.ndarray
) -> Overflow | None:
    """Copy the wanted elements of the bytes `run` into a block's `buffer`, both arrays of bytes.

    Returns the overflow of a cast, indexed in the whole parameter; None without one.
    """
    dtype = _UINT_OF_SIZE[parameter.dtype.itemsize]
    target = np.ndarray(chunk.box.shape, dtype, buffer, chunk.position)[
        (..., *read_range.index)
    ]  # `...`: a view even of a scalar
    if read_range.dtype is not None:
        return _cast(run, read_range, read_range.dtype, chunk, parameter, target)
    values = np.ndarray(target.shape, dtype, run, strides=read_range.strides)
    if read_range.transposed:
        copy_transposed(values, target)
    else:
        target[...] = values
    return None


def _cast(
    run: np.ndarray, read_range: ReadRange, dtype: DType, chunk: Chunk, parameter: ParameterPlan, target: np.ndarray
) -> Overflow | None:
    first = read_range.target_offset // parameter.dtype.itemsize
    if read_range.strides is None:
        target = target.reshape(-1)[first : first + read_range.length // dtype.itemsize]
    values = np.ndarray(target.shape, _UINT_OF_SIZE[dtype.itemsize], run, strides=read_range.strides)
    found = None
    if cast_into(values, dtype, parameter.dtype, target):
        found = find_overflow(values, dtype, parameter.dtype)
    if found is None:
        return None
    if read_range.strides is None:
        inner = tuple(map(int, np.unravel_index(first + found.first[0], chunk.box.shape)))
    else:
        inner = tuple(
            place.start + low * (place.step or 1) for place, low in zip(read_range.index, found.first, strict=True)
        )
    in_whole = map(sum, zip(inner, chunk.box.start, parameter.box.start, strict=True))
    return Overflow(found.count, found.largest, tuple(in_whole))
