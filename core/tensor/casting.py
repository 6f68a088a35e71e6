"""Turns floating-point values of one dtype into another's: rounded to the nearest, ties to even.

The bits are those of numpy's and ml_dtypes' `astype`, and, but for two things, those of MindSpore's `astype`:

- A NaN becomes a NaN, but which one differs: here the sign stays, and the payload where numpy keeps it; MindSpore gives
  float16 and bfloat16 one NaN each, bfloat16 without a sign.
- float64 to float16 is rounded once here, twice in MindSpore, which goes by way of float32: about one value in
  twenty thousand differs by one unit. Float64 to bfloat16 goes by way of float32 in all three.

Subnormal values are kept, signed zeros, too. What is too large becomes infinite, which is counted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.numpy_types import cast_bits, typed
from reshard.core.tensor.slices import Shape
from reshard.core.tensor.tiling import tiles

_EXPONENT_BITS = {"Float16": 5, "BFloat16": 8, "Float32": 8, "Float64": 11}


@dataclass(frozen=True)
class Overflow:
    """Finite values that became infinite.

    Attributes:
        count: how many; at least one.
        largest: the one that is farthest from zero.
        first: index of the first of them.
    """

    count: int
    largest: float
    first: Shape

    def joined(self, other: "Overflow") -> "Overflow":
        """Both together; their indexes are of one array."""
        largest = self.largest if abs(self.largest) >= abs(other.largest) else other.largest
        return Overflow(self.count + other.count, largest, min(self.first, other.first))


def cast_into(values: np.ndarray, source: DType, target: DType, out: np.ndarray) -> int:
    """Casts `values` of the dtype `source` into `out`; returns how many finite values became infinite.

    Both are arrays of one shape, of unsigned integers of the dtypes' item sizes, with any strides, and do not overlap.
    Memory beyond them is a few hundred kilobytes, whatever their size.
    """
    read, written = typed(values, source), typed(out, target)
    if read.flags.c_contiguous and written.flags.c_contiguous:
        read, written = read.reshape(-1), written.reshape(-1)
    may_overflow = _may_overflow(source, target)
    count = 0
    with np.errstate(all="ignore"):
        for index in tiles(read, written):
            # casts of values side by side are several times as fast
            cast = np.ascontiguousarray(read[index]).astype(written.dtype)
            written[index] = cast
            if may_overflow and _may_hold_infinite(cast):
                count += int(np.count_nonzero(_infinite(cast)) - np.count_nonzero(_infinite(read[index])))
    return count


def find_overflow(values: np.ndarray, source: DType, target: DType) -> Overflow | None:
    """What `cast_into` counts, in detail; None if it counts nothing. As much memory as the values take, and more."""
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
    """Whether a finite value may become infinite: by a smaller exponent, or by rounding up where that is as large."""
    bits = _EXPONENT_BITS[target.name] - _EXPONENT_BITS[source.name]
    return bits < 0 or (bits == 0 and target.itemsize < source.itemsize)


def _may_hold_infinite(tile: np.ndarray) -> bool:
    """Whether there is an infinity in a tile, or a NaN: their bits are the highest of either sign."""
    if not tile.size:
        return False
    signed, unsigned = tile.view(f"i{tile.itemsize}"), tile.view(f"u{tile.itemsize}")
    infinity = _infinity_bits(tile.dtype)
    return bool(signed.max() >= infinity or unsigned.max() >= infinity + (1 << (8 * tile.itemsize - 1)))


def _infinite(values: np.ndarray) -> np.ndarray:
    """Which values are infinite, of either sign; by their bits, for ml_dtypes' own test is many times as slow."""
    bits = values.view(f"u{values.itemsize}")
    infinite: np.ndarray = bits << bits.dtype.type(1) == bits.dtype.type(2 * _infinity_bits(values.dtype))
    return infinite


def _infinity_bits(dtype: np.dtype[Any]) -> int:
    return int(np.array(np.inf, dtype).view(f"u{dtype.itemsize}"))
