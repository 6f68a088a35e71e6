"""Tiles: boxes of an array that fit the processor's caches.

If two arrays of one shape have different orders in memory, as a matrix and its transpose, the rows of one are scattered
in the other: every element of a row takes a cache line. Tiles that are long along both arrays' rows use whole cache
lines of both.

Rows of a matrix often lie a power of two apart, where a cache has room for the same column of only a few of them. So a
tile that is transposed is first copied row by row to a scratch array, whose rows lie a cache line farther apart.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

TILE_ELEMENTS = 2**15
"""Large enough that calls cost little, small enough for the second-level cache."""
_SMALL_ELEMENTS = 2**14
"""An array that is one tile: dividing it costs more than it saves."""
_TILE_SIDE = 256
"""Longest side of a transposed tile, along the source's rows; `TILE_ELEMENTS` leave 128 along the target's."""
_CACHE_LINE_BYTES = 64

Index = tuple[slice, ...]


def tiles(source: np.ndarray, target: np.ndarray) -> Iterator[Index]:
    """Yield indexes of tiles of at most `TILE_ELEMENTS` that cover two arrays of one shape."""
    if source.size <= _SMALL_ELEMENTS:
        yield (slice(None),) * source.ndim
        return
    sides = _sides(source, target)
    ranges = (range(0, length, side) for length, side in zip(source.shape, sides, strict=True))
    for start in product(*ranges):
        yield tuple(slice(low, low + side) for low, side in zip(start, sides, strict=True))


def tile_values(source: np.ndarray, target: np.ndarray) -> Iterator[tuple[Index, np.ndarray]]:
    """Yield the index of each tile, and the source's values there: use them before the next tile.

    Values in another order than the target's are a copy that is quick to transpose.
    """
    scratch = None
    if source.size > _SMALL_ELEMENTS and _is_transposed(source, target):
        scratch = _scratch(source, _sides(source, target))
    for index in tiles(source, target):
        values = source[index]
        if scratch is not None:
            tile, values = values, scratch[tuple(slice(length) for length in values.shape)]
            values[...] = tile
        yield index, values


def copy_transposed(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array to one whose elements lie in another order."""
    for index, values in tile_values(source, target):
        target[index] = values


def _sides(source: np.ndarray, target: np.ndarray) -> list[int]:
    """A tile's length along each axis; the axes with the smallest strides in either array come first."""
    fastest = [_axes_by_stride(array)[0] for array in (source, target)]
    is_transposed = _is_transposed(source, target)
    sides = [1] * source.ndim
    for axis in dict.fromkeys([*fastest, *_axes_by_stride(source)]):
        room = max(1, TILE_ELEMENTS // math.prod(sides))
        most = _TILE_SIDE if is_transposed and axis in fastest else room
        sides[axis] = max(1, min(source.shape[axis], most, room))
    return sides


def _scratch(source: np.ndarray, sides: Sequence[int]) -> np.ndarray | None:
    """An array for a tile's values: rows as in `source`, a cache line farther apart; None where rows are shorter."""
    slowest_first = sorted(range(source.ndim), key=lambda axis: (source.shape[axis] > 1, -abs(source.strides[axis])))
    shape = [sides[axis] for axis in slowest_first]
    padding = _CACHE_LINE_BYTES // source.itemsize
    if shape[-1] < padding:
        return None
    shape[-1] += padding
    return np.empty(shape, source.dtype).transpose(np.argsort(slowest_first))


def _is_transposed(source: np.ndarray, target: np.ndarray) -> bool:
    return _axes_by_stride(source)[:1] != _axes_by_stride(target)[:1]


def _axes_by_stride(array: np.ndarray) -> list[int]:
    """Axes longer than one element, those with the smallest strides first."""
    axes = [axis for axis, length in enumerate(array.shape) if length > 1]
    return sorted(axes, key=lambda axis: abs(array.strides[axis]))
