"""Block-scaled values, which are multiplied with their blocks' factors.

scaled_values      matrices of float8_e4m3fn with a float32 factor for each block
unpacked_values    MXFP4: two float4_e2m1fn a byte, with a power of two, float8_e8m0fnu, for each 32 along the last axis
"""

import ml_dtypes
import numpy as np

from reshard.core.tensor.quantized import MXFP4_GROUP
from reshard.core.tensor.slices import Shape
from reshard.core.tensor.tiling import TILE_ELEMENTS, tiles

_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
with np.errstate(over="ignore"):
    _POWERS = np.exp2(np.arange(256.0) - 127).astype(np.float32)
    """The factors: 2^-127 to 2^127, and infinity."""


def scaled_values(values: np.ndarray, start: Shape, factors: np.ndarray, block: Shape) -> np.ndarray:
    """Multiply the values of a box with their blocks' factors in float32, and round to the nearest bfloat16.

    Args:
        values: float8_e4m3fn as bytes, in the box's shape, of any strides.
        start: the box's first index in the whole matrix.
        factors: float32, an element for each block of the whole matrix.
        block: lengths of a block; those at the ends of axes may be shorter.

    Returns:
        A C-ordered array of the bits of bfloat16 values, uint16.
    """
    scaled = np.empty(values.shape, _BFLOAT16)
    blocks = [(low + np.arange(length)) // side for low, length, side in zip(start, values.shape, block, strict=True)]
    with np.errstate(all="ignore"):
        for index in tiles(values, scaled):
            tile = np.ascontiguousarray(values[index]).view(_FLOAT8).astype(np.float32)
            tile *= factors[np.ix_(*(numbers[along] for numbers, along in zip(blocks, index, strict=True)))]
            scaled[index] = tile.astype(_BFLOAT16)
    return scaled.view(np.uint16)


def unpacked_values(packed: np.ndarray, start: Shape, factors: np.ndarray) -> np.ndarray:
    """Unpack the values of a box of MXFP4, multiply them with their groups' factors, and round to bfloat16.

    Args:
        packed: bytes of two values along the last axis, the low bits first: of shape (experts, rows, columns / 2), of
            any strides.
        start: the box's first index, of values; even along the last axis.
        factors: exponents of two plus 127, as bytes: of the box's experts, and all their rows and groups.

    Returns:
        A C-ordered array of the bits of bfloat16 values, uint16.
    """
    experts, rows, pairs = packed.shape
    unpacked = np.empty((experts, rows, 2 * pairs), _BFLOAT16)
    groups = (start[2] + np.arange(2 * pairs)) // MXFP4_GROUP
    side = max(1, TILE_ELEMENTS // max(1, 2 * pairs))
    with np.errstate(all="ignore"):
        for expert in range(experts):
            for first in range(0, rows, side):
                tile = packed[expert, first : first + side]
                values = np.empty((len(tile), 2 * pairs), np.float32)
                values[:, ::2] = _FLOAT4_VALUES[tile & 15]
                values[:, 1::2] = _FLOAT4_VALUES[tile >> 4]
                of_rows = factors[expert, start[1] + first : start[1] + first + len(tile)]
                values *= _POWERS[of_rows[:, groups]]
                unpacked[expert, first : first + side] = values.astype(_BFLOAT16)
    return unpacked.view(np.uint16)
