"""Boxes in which an array is gone through, so that what is done to it stays in the processor's caches.

Where two arrays of one shape lie in different orders in memory, one of a matrix and its transpose, going along the rows
of one means jumping through the other: every element of a row takes a line of the cache. Square tiles use each line for
all that is in it.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

TILE_ELEMENTS = 2**15
"""Enough that calls cost little, few enough for the second-level cache."""
_TILE_SIDE = 128
"""2 GB/s of a transposed matrix of 4-byte elements; 0.7 with whole rows."""

Index = tuple[slice, ...]


def tiles(source: np.ndarray, target: np.ndarray) -> Iterator[Index]:
    """Indexes of boxes of at most `TILE_ELEMENTS` that make up two arrays of one shape, in the order of their axes."""
    if source.size <= _TILE_SIDE * _TILE_SIDE:
        yield (slice(None),) * source.ndim
        return
    sides = _sides(source, target)
    ranges = (range(0, length, side) for length, side in zip(source.shape, sides, strict=True))
    for start in product(*ranges):
        yield tuple(slice(low, low + side) for low, side in zip(start, sides, strict=True))


def copy_transposed(source: np.ndarray, target: np.ndarray) -> None:
    """Copies an array to another one whose elements lie in another order."""
    for index in tiles(source, target):
        target[index] = source[index]


def _sides(source: np.ndarray, target: np.ndarray) -> list[int]:
    """How long a tile is along each axis: the axes that lie closest together in either array come first."""
    fastest = [_axes_by_stride(array)[0] for array in (source, target)]
    turned = fastest[0] != fastest[1]
    sides = [1] * source.ndim
    for axis in dict.fromkeys([*fastest, *_axes_by_stride(source)]):
        room = max(1, TILE_ELEMENTS // math.prod(sides))
        most = _TILE_SIDE if turned and axis in fastest else room
        sides[axis] = max(1, min(source.shape[axis], most, room))
    return sides


def _axes_by_stride(array: np.ndarray) -> list[int]:
    """Axes that have a length, those whose neighbors lie closest together first."""
    axes = [axis for axis, length in enumerate(array.shape) if length > 1]
    return sorted(axes, key=lambda axis: abs(array.strides[axis]))
