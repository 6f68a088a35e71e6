"""Block-scaled values: matrices of float8_e4m3fn with a float32 factor for each block of their elements."""

import ml_dtypes
import numpy as np

from reshard.core.tensor.slices import Shape
from reshard.core.tensor.tiling import tiles

_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


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
