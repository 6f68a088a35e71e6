"""Finds NaN and Inf in elements read as unsigned integers, by their bits: no cast, so at the speed of memory.

Of most floating-point types the numbers that are not finite are those of the largest magnitudes, the same for both
signs. So two maxima tell whether a block has any: that of the bits as signed integers, and that as unsigned ones.
"""

from collections.abc import Mapping

import numpy as np

from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType


class FloatBits(Record):
    """The bits of a floating-point type that are no finite number.

    Attributes:
        sign: the bit of the sign; 0 without one.
        nan: the least magnitude of NaN.
        infinity: the magnitude of Inf, which is `nan - 1`; None if the type has none.
        only_nan: the only pattern that is NaN, where magnitudes do not tell it.
    """

    sign: int
    nan: int = 0
    infinity: int | None = None
    only_nan: int | None = None

    @property
    def limit(self) -> int:
        """The least magnitude that is not finite."""
        return self.nan if self.infinity is None else self.infinity


class NonFinite(Record):
    """What a block of elements has of NaN and Inf.

    Attributes:
        nan: how many are NaN.
        inf: how many are Inf, of either sign.
        first: the first of them, counted through the block.
    """

    nan: int
    inf: int
    first: int


def _ieee(exponent_bits: int, fraction_bits: int) -> FloatBits:
    """The bits of a type whose largest exponent is that of Inf and NaN."""
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    return FloatBits(1 << (exponent_bits + fraction_bits), infinity + 1, infinity)


_BITS: Mapping[str, FloatBits] = {
    "Float16": _ieee(5, 10),
    "BFloat16": _ieee(8, 7),
    "Float32": _ieee(8, 23),
    "Float64": _ieee(11, 52),
    "F8_E5M2": _ieee(5, 2),
    "F8_E4M3": FloatBits(0x80, 0x7F),
    "F8_E4M3FNUZ": FloatBits(0x80, only_nan=0x80),
    "F8_E5M2FNUZ": FloatBits(0x80, only_nan=0x80),
    "F8_E8M0": FloatBits(0, only_nan=0xFF),
}
_ALWAYS_FINITE = frozenset({"F6_E2M3", "F6_E3M2", "F4"})
"""Types that have neither NaN nor Inf."""


def float_bits(dtype: DType) -> FloatBits | None:
    """Return the bits of a type's NaN and Inf; None if it has none, or reshard does not know them."""
    return _BITS.get(dtype.name)


def is_unknown(dtype: DType) -> bool:
    """True for a type of another framework that may have NaN, and whose bits reshard does not know."""
    return dtype.is_foreign and dtype.name not in _BITS and dtype.name not in _ALWAYS_FINITE


def find_non_finite(values: np.ndarray, bits: FloatBits) -> NonFinite | None:
    """Find NaN and Inf in elements as unsigned integers of the type's size; None if all are finite."""
    if not values.size or not _has_any(values, bits):
        return None
    if bits.only_nan is not None:
        is_nan = values == bits.only_nan
        is_inf = np.zeros_like(is_nan)
    else:
        magnitudes = values & values.dtype.type(bits.sign - 1)
        is_nan = magnitudes >= bits.nan
        is_inf = magnitudes == bits.infinity if bits.infinity is not None else np.zeros_like(is_nan)
    first = int(np.argmax((is_nan | is_inf).reshape(-1)))
    return NonFinite(int(np.count_nonzero(is_nan)), int(np.count_nonzero(is_inf)), first)


def are_zero(values: np.ndarray, bits: FloatBits) -> bool:
    """True if all elements are zero, of either sign."""
    if not values.size or not bits.sign or values.reshape(-1)[0] & values.dtype.type(bits.sign - 1):
        return False
    if bits.only_nan is not None:
        return not values.any()
    return bool(values.max() <= bits.sign and _signed(values).max() <= 0)


def _has_any(values: np.ndarray, bits: FloatBits) -> bool:
    if bits.only_nan is not None:
        return bool((values == bits.only_nan).any())
    return bool(_signed(values).max() >= bits.limit or values.max() >= bits.sign | bits.limit)


def _signed(values: np.ndarray) -> np.ndarray:
    signed: np.ndarray = values.view(f"<i{values.dtype.itemsize}")
    return signed
