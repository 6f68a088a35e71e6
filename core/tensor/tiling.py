"""Tiles: boxes of an array that fit the processor's caches.

If two arrays of one shape have different orders in memory, as a matrix and its transpose, the rows of one are scattered
in the other: every element of a row takes a cache line. Square tiles use whole cache lines of both.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

TILE_ELEMENTS = 2**15
"""Large enough that calls cost little, small enough for the second-level cache."""
_TILE_SIDE = 128
"""2 GB/s of a transposed matrix of 4-byte elements; 0.7 with whole rows."""

Index = tuple[slice, ...]


def tiles(source: np.ndarray, target: np.ndarray) -> Iterator[Index]:
    """Yield indexes of tiles of at most `TILE_ELEMENTS` that cover two arrays of one shape."""
    if source.size <= _TILE_SIDE * _TILE_SIDE:
        yield (slice(None),) * source.ndim
        return
    sides = _sides(source, target)
    ranges = (range(0, length, side) for length, side in zip(source.shape, sides, strict=True))
    for start in product(*ranges):
        yield tuple(slice(low, low + side) for low, side in zip(start, sides, strict=True))


def copy_transposed(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array to one whose elements lie in another order."""
    for index in tiles(source, target):
        target[index] = source[index]


def _sides(source: np.ndarray, target: np.ndarray) -> list[int]:
    """A tile's length along each axis; the axes with the smallest strides in either array come first."""
    fastest = [_axes_by_stride(array)[0] for array in (source, target)]
    is_transposed = fastest[0] != fastest[1]
    sides = [1] * source.ndim
    for axis in dict.fromkeys([*fastest, *_axes_by_stride(source)]):
        room = max(1, TILE_ELEMENTS // math.prod(sides))
        most = _TILE_SIDE if is_transposed and axis in fastest else room
        sides[axis] = max(1, min(source.shape[axis], most, room))
    return sides


def _axes_by_stride(array: np.ndarray) -> list[int]:
    """Axes longer than one element, those with the smallest strides first."""
    axes = [axis for axis, length in enumerate(array.shape) if length > 1]
    return sorted(axes, key=lambda axis: abs(array.strides[axis]))
