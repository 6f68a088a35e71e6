"""Casts floating-point values to another dtype: rounded to the nearest, ties to even.

The bits are those of numpy's and ml_dtypes' `astype`, and, but for two things, those of MindSpore's `astype`:

- A NaN becomes a NaN, but which one differs: here the sign stays, and the payload where numpy keeps it; MindSpore gives
  float16 and bfloat16 one NaN each, bfloat16 without a sign.
- float64 to float16 is rounded once here, twice in MindSpore, which goes by way of float32: about one value in
  twenty thousand differs by one unit. Float64 to bfloat16 goes by way of float32 in all three.

Subnormal values and signed zeros are kept. Values that are too large become infinite, and are counted.
"""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.overflow import Overflow
from reshard.core.tensor.tiling import tile_values

NUMPY_TYPES: Mapping[str, np.dtype[Any]] = {
    "Int8": np.dtype("<i1"),
    "UInt8": np.dtype("<u1"),
    "Int16": np.dtype("<i2"),
    "UInt16": np.dtype("<u2"),
    "Int32": np.dtype("<i4"),
    "UInt32": np.dtype("<u4"),
    "Int64": np.dtype("<i8"),
    "UInt64": np.dtype("<u8"),
    "Float16": np.dtype("<f2"),
    "Float32": np.dtype("<f4"),
    "Float64": np.dtype("<f8"),
    "Bool": np.dtype("?"),
    "BFloat16": np.dtype(ml_dtypes.bfloat16),
}
"""dtype name -> numpy dtype; numpy has none for packed 4-bit integers, texts and map tensors."""
_EXPONENT_BITS = {"Float16": 5, "BFloat16": 8, "Float32": 8, "Float64": 11}


def typed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """View the bits of elements, as unsigned integers, as their dtype's values; opaque elements stay bytes."""
    return values.view(NUMPY_TYPES.get(dtype.name, values.dtype))


def cast_bits(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Cast the bits of floating-point values to the bits of another dtype, rounded to the nearest."""
    with np.errstate(all="ignore"):
        cast: np.ndarray = typed(values, source).astype(NUMPY_TYPES[target.name])
    return cast.view(f"<u{target.itemsize}")


def increased(values: np.ndarray, dtype: DType, number: int) -> np.ndarray:
    """Add a number to floating-point values, whose bits these are, and round to the nearest; at least in float32."""
    own = NUMPY_TYPES[dtype.name]
    with np.errstate(all="ignore"):
        added = typed(values, dtype).astype(np.result_type(own, np.float32)) + own.type(number).astype(np.float32)
    rounded: np.ndarray = added.astype(own)
    return rounded.view(values.dtype)


def cast_into(values: np.ndarray, source: DType, target: DType, out: np.ndarray) -> int:
    """Cast `values` of the dtype `source` into `out`; return how many finite values became infinite.

    Both are arrays of unsigned integers of the dtypes' item sizes, of the same shape and any strides, without overlap.
    The additional memory is a few hundred kilobytes, whatever their size.
    """
    read, written = typed(values, source), typed(out, target)
    if read.flags.c_contiguous and written.flags.c_contiguous:
        read, written = read.reshape(-1), written.reshape(-1)
    may_overflow = _may_overflow(source, target)
    count = 0
    with np.errstate(all="ignore"):
        for index, tile in tile_values(read, written):
            # contiguous values are cast several times as fast
            cast = np.ascontiguousarray(tile).astype(written.dtype)
            written[index] = cast
            if may_overflow and _may_hold_infinite(cast):
                count += int(np.count_nonzero(_infinite(cast)) - np.count_nonzero(_infinite(tile)))
    return count


def find_overflow(values: np.ndarray, source: DType, target: DType) -> Overflow | None:
    """Return details of what `cast_into` counts, None if that is nothing; needs more memory than the values."""
    read = typed(values, source)
    overflowed = _infinite(typed(cast_bits(values, source, target), target)) & ~_infinite(read)
    count = int(np.count_nonzero(overflowed))
    if not count:
        return None
    large = read[overflowed].astype(np.float64)
    largest = float(large[np.argmax(np.abs(large))])
    first = np.unravel_index(int(np.argmax(overflowed)), overflowed.shape)
    return Overflow(count, largest, tuple(map(int, first)))


def _may_overflow(source: DType, target: DType) -> bool:
    """True if a finite value may become infinite: by a smaller exponent, or by rounding up to one of the same size."""
    bits = _EXPONENT_BITS[target.name] - _EXPONENT_BITS[source.name]
    return bits < 0 or (bits == 0 and target.itemsize < source.itemsize)


def _may_hold_infinite(tile: np.ndarray) -> bool:
    """True if a tile holds an infinity or a NaN: their bits are the highest of either sign."""
    if not tile.size:
        return False
    signed, unsigned = tile.view(f"i{tile.itemsize}"), tile.view(f"u{tile.itemsize}")
    infinity = _infinity_bits(tile.dtype)
    return bool(signed.max() >= infinity or unsigned.max() >= infinity + (1 << (8 * tile.itemsize - 1)))


def _infinite(values: np.ndarray) -> np.ndarray:
    """Bool array of infinite values of either sign; ml_dtypes' own test is many times slower than one of bits."""
    bits = values.view(f"u{values.itemsize}")
    infinite: np.ndarray = bits << bits.dtype.type(1) == bits.dtype.type(2 * _infinity_bits(values.dtype))
    return infinite


def _infinity_bits(dtype: np.dtype[Any]) -> int:
    return int(np.array(np.inf, dtype).view(f"u{dtype.itemsize}"))
