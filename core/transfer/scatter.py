"""Copies the wanted elements of a read range into a block: strided, transposed or cast."""

import numpy as np

from reshard.core.errors import CheckpointError
from reshard.core.plan.model import ParameterPlan
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.overflow import Overflow
from reshard.core.tensor.tiling import copy_transposed
from reshard.core.tensor.value_changes import Increase, Zeroing
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import AdaptedBox, ReadRange, ScaledBox, SourceShard, ValueChange

_INFINITE_BFLOAT16 = np.uint16(0x7F80)
_UINT_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def scatter_values(
    run: memoryview | np.ndarray,
    read_range: ReadRange,
    chunk: Chunk,
    parameter: ParameterPlan,
    buffer: np.ndarray,
    factors: np.ndarray | None = None,
    change: ValueChange | None = None,
) -> Overflow | None:
    """Copy the wanted elements of the bytes `run` into a block's `buffer`, both arrays of bytes.

    `factors` are those of values that are scaled, `change` makes those that an adapter changes. Returns the overflow of
    a cast, indexed in the whole parameter; None without one.

    Raises:
        CheckpointError: scaled values are infinite.
    """
    dtype = _UINT_OF_SIZE[parameter.dtype.itemsize]
    whole = np.ndarray(chunk.box.shape, dtype, buffer, chunk.position)
    target = whole[(..., *read_range.index)]  # `...`: a view even of a scalar
    box = read_range.source_box
    if isinstance(box, ScaledBox):
        assert factors is not None, "scaled values come with factors"
        run = _scaled(run, box, factors, parameter, read_range)
    elif box is not None:
        assert change is not None, "values that an adapter changes come with the change"
        values = np.ndarray(box.shape, _UINT_OF_SIZE[box.dtype.itemsize], run, strides=box.strides)
        if _takes_all(target, box, read_range):
            change(values, box.dtype, box.start, target)
            return None
        run = change(values, box.dtype, box.start).reshape(-1).view(np.uint8)
    for step in read_range.each:
        run = _changed(run, step, read_range.dtype)
    if read_range.dtype is not None and (read_range.strides is None or read_range.dtype is not parameter.dtype):
        return _cast(run, read_range, read_range.dtype, chunk, parameter, target)
    values = np.ndarray(target.shape, dtype, run, strides=read_range.strides)
    if read_range.transposed:
        copy_transposed(values, target)
    else:
        target[...] = values
    return None


def _scaled(
    run: memoryview | np.ndarray, box: ScaledBox, factors: np.ndarray, parameter: ParameterPlan, read_range: ReadRange
) -> np.ndarray:
    from reshard.core.tensor.scaling import scaled_values, unpacked_values

    values = np.ndarray(box.shape, np.uint8, run, strides=box.strides)
    if box.scale.is_packed:
        products = unpacked_values(values, box.start, factors).reshape(-1)
    else:
        products = scaled_values(values, box.start, factors, box.scale.block).reshape(-1)
    if (products << 1 == _INFINITE_BFLOAT16 << 1).any():
        scale = parameter.sources[box.scale.source]
        raise CheckpointError(
            f"parameter {parameter.name!r}: values become infinite by their scale {scale.name!r}, near "
            f"{list(box.start)} of {parameter.sources[read_range.source].name!r}: the scale is damaged"
        )
    return products.view(np.uint8)[box.skipped_bytes :]


def _changed(run: memoryview | np.ndarray, step: Increase | Zeroing, dtype: DType | None) -> np.ndarray:
    if isinstance(step, Zeroing):
        return np.zeros(len(run), np.uint8)
    from reshard.core.tensor.casting import increased

    assert dtype is not None, "values that are changed have their element type"
    return increased(np.frombuffer(run, _UINT_OF_SIZE[dtype.itemsize]), dtype, step.number).view(np.uint8)


def _takes_all(target: np.ndarray, box: AdaptedBox, read_range: ReadRange) -> bool:
    """True if `target` gets all values of a box, in their order, as they are after the change."""
    is_whole = target.shape == box.shape and read_range.strides == SourceShard(box.shape, box.dtype).strides
    return is_whole and not read_range.transposed and read_range.dtype is None


def _cast(
    run: memoryview | np.ndarray,
    read_range: ReadRange,
    dtype: DType,
    chunk: Chunk,
    parameter: ParameterPlan,
    target: np.ndarray,
) -> Overflow | None:
    from reshard.core.tensor.casting import cast_into, find_overflow

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
