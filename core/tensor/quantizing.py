"""Quantizes matrices to block-fp8: float8_e4m3fn, with a float32 scale for each block of elements.

All is computed in float32, as transformers does it. A block's factor is the reciprocal of its largest magnitude times
448, the largest float8_e4m3fn; a value is multiplied by it, limited to ±448 and rounded to the nearest, ties to even.
The scale that is stored, by which loaders multiply, is 1 / factor. A block of zeros has the factor 1.

One thing is not as there: for a magnitude below 1.4e-36 the factor would be infinite, and loaders would read NaN. Here
it is the largest float32.
"""

import numpy as np

from reshard.core.tensor.casting import cast_bits, typed
from reshard.core.tensor.dtypes import DType, dtype_from_name

_TILE_ELEMENTS = 2**16
"""A tile's buffers fit the second-level cache."""
_LARGEST = np.float32(448)
_MOST = np.float32(np.finfo(np.float32).max)
_FLOAT32 = dtype_from_name("Float32")
_SIGN_OF_FLOAT32 = np.uint32(2**31)
_SIGN_OF_FLOAT8 = np.uint8(0x80)
_HALF_DIGIT = np.uint32(2**19 - 1)
"""Added to float32's bits, with the last bit that is kept, it rounds to float8's 3 bits of mantissa."""
_SMALLEST_NORMAL = np.float32(2.0**-6)
_LESS_EXPONENT = np.uint32(2**32 - (120 << 23))
"""Added to float32's bits, it changes the exponent's bias from 127 to 7."""
_DIGITS_OF_SUBNORMAL = np.float32(2**14)
"""Added to a magnitude below 2^-6, this leaves multiples of 2^-9 in the last bits, rounded to the nearest even."""


def largest_magnitudes(bits: np.ndarray, dtype: DType, first_column: int, width: int) -> np.ndarray:
    """Return the largest magnitude in each block's columns of some rows, float32; infinite or NaN if a value is.

    Args:
        bits: floating-point values of `dtype`, as unsigned integers: rows of a matrix, or columns of them.
        dtype: their element type.
        first_column: the number of their first column in the matrix.
        width: columns of a block; a first one that lies in a block counts for that.
    """
    size = bits.itemsize
    # floats without their sign are ordered as their bits are, NaN and infinity above all
    magnitudes = bits & bits.dtype.type((1 << (8 * size - 1)) - 1)
    starts = np.arange(first_column // width * width, first_column + bits.shape[1], width) - first_column
    starts[0] = 0
    found: np.ndarray = np.maximum.reduceat(magnitudes.max(axis=0), starts)
    return cast_bits(found, dtype, _FLOAT32).view(np.float32)


def block_factors(largest: np.ndarray) -> np.ndarray:
    """Return the factors of blocks by their largest magnitudes, float32."""
    with np.errstate(over="ignore"):
        factors = np.float32(1) / np.where(largest > 0, largest, np.float32(1)) * _LARGEST
    return np.where(largest > 0, np.minimum(factors, _MOST), np.float32(1))


def stored_scales(factors: np.ndarray) -> np.ndarray:
    """Return the scales that are stored for blocks with these factors, float32."""
    scales: np.ndarray = np.float32(1) / factors
    return scales


def quantize_into(
    bits: np.ndarray, dtype: DType, first_column: int, factors: np.ndarray, width: int, out: np.ndarray
) -> None:
    """Quantize finite values of some rows in one row of blocks.

    Args:
        bits: as in `largest_magnitudes`.
        dtype: their element type.
        first_column: the number of their first column in the matrix.
        factors: of all blocks in their row of blocks.
        width: columns of a block.
        out: float8_e4m3fn as bytes, in the shape of `bits`.
    """
    rows, columns = bits.shape
    of_columns = factors[(first_column + np.arange(columns)) // width]
    side = max(1, _TILE_ELEMENTS // max(1, rows))
    most = rows * min(side, columns)
    scaled, last_digits = np.empty(most, np.float32), np.empty(most, np.uint32)
    rounded, signs = np.empty((2, most), np.uint8)
    for start in range(0, columns, side):
        tile = typed(bits[:, start : start + side], dtype)
        values, *buffers = (each[: tile.size] for each in (scaled, last_digits, rounded, signs))
        matrix = values.reshape(tile.shape)
        matrix[...] = tile
        matrix *= of_columns[start : start + side]
        _round_to_float8(values, *buffers)
        out[:, start : start + side] = rounded[: tile.size].reshape(tile.shape)


def _round_to_float8(values: np.ndarray, last_digits: np.ndarray, out: np.ndarray, signs: np.ndarray) -> None:
    """Round float32 to float8_e4m3fn, whose bits are put into `out`; all arrays, of one axis, are overwritten.

    It takes a fifth of the time of ml_dtypes' `astype`, and its tests compare the two.
    """
    bits = values.view(np.uint32)
    np.right_shift(bits, 24, out=signs, casting="unsafe")
    signs &= _SIGN_OF_FLOAT8
    bits &= ~_SIGN_OF_FLOAT32
    np.minimum(values, _LARGEST, out=values)
    subnormal = np.flatnonzero(values < _SMALLEST_NORMAL)
    rounded = (values[subnormal] + _DIGITS_OF_SUBNORMAL).view(np.uint32)
    np.right_shift(bits, 20, out=last_digits)
    last_digits &= np.uint32(1)
    bits += last_digits
    bits += _HALF_DIGIT + _LESS_EXPONENT
    np.right_shift(bits, 20, out=out, casting="unsafe")
    out[subnormal] = rounded.astype(np.uint8)
    out |= signs
