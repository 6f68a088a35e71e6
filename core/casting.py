"""Turns floating-point values of one dtype into another's: rounded to the nearest, ties to even.

The bits are those of numpy's and ml_dtypes' `astype`, and, but for two things, those of MindSpore's `astype`:

- A NaN becomes a NaN, but which one differs: here the sign stays, and the payload where numpy keeps it; MindSpore gives
  float16 and bfloat16 one NaN each, bfloat16 without a sign.
- float64 to float16 is rounded once here, twice in MindSpore, which goes by way of float32: about one value in ten
  thousand differs by one unit. Float64 to bfloat16 goes by way of float32 in all three.

Subnormal values are kept, signed zeros, too. What is too large becomes infinite, which is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from core.dtypes import DType
from core.slices import Shape
from core.tiles import tiles

_FLOATS: Mapping[str, np.dtype[Any]] = {
    "Float16": np.dtype(np.float16),
    "BFloat16": np.dtype(ml_dtypes.bfloat16),
    "Float32": np.dtype(np.float32),
    "Float64": np.dtype(np.float64),
}
_EXPONENT_BITS = {"Float16": 5, "BFloat16": 8, "Float32": 8, "Float64": 11}
CASTABLE = tuple(_FLOATS)
"""Names of the dtypes that are cast among each other."""


def is_castable(source: DType, target: DType) -> bool:
    """Whether values of one dtype can be turned into the other's."""
    return source.name in _FLOATS and target.name in _FLOATS


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
    read, written = values.view(_FLOATS[source.name]), out.view(_FLOATS[target.name])
    if read.flags.c_contiguous and written.flags.c_contiguous:
        read, written = read.reshape(-1), written.reshape(-1)
    may_overflow = _may_overflow(source, target)
    count = 0
    with np.errstate(all="ignore"):
        for index in tiles(read, written):
            # casts of values side by side are several times as fast
            cast = np.ascontiguousarray(read[index]).astype(written.dtype)
            written[index] = cast
            if may_overflow and _may_hold_infinite(cast, target):
                count += int(np.count_nonzero(np.isinf(cast)) - np.count_nonzero(np.isinf(read[index])))
    return count


def find_overflow(values: np.ndarray, source: DType, target: DType) -> Overflow | None:
    """What `cast_into` counts, in detail; None if it counts nothing. As much memory as the values take, and more."""
    read = values.view(_FLOATS[source.name])
    with np.errstate(all="ignore"):
        overflowed = np.isinf(read.astype(_FLOATS[target.name])) & np.isfinite(read)
    count = int(np.count_nonzero(overflowed))
    if not count:
        return None
    largest = max((float(each) for each in read[overflowed].astype(np.float64)), key=abs)
    first = np.unravel_index(int(np.argmax(overflowed)), overflowed.shape)
    return Overflow(count, largest, tuple(map(int, first)))


def _may_overflow(source: DType, target: DType) -> bool:
    """Whether a finite value may become infinite: by a smaller exponent, or by rounding up where that is as large."""
    bits = _EXPONENT_BITS[target.name] - _EXPONENT_BITS[source.name]
    return bits < 0 or (bits == 0 and target.itemsize < source.itemsize)


def _may_hold_infinite(tile: np.ndarray, target: DType) -> bool:
    """Whether there is an infinity in a tile, or a NaN: their bits are the highest of either sign."""
    size = target.itemsize
    infinity = ((1 << _EXPONENT_BITS[target.name]) - 1) << (8 * size - 1 - _EXPONENT_BITS[target.name])
    signed, unsigned = tile.view(f"i{size}"), tile.view(f"u{size}")
    if not tile.size:
        return False
    return bool(signed.max() >= infinity or unsigned.max() >= infinity + (1 << (8 * size - 1)))
