"""CRC-32 (zlib's, at three times its speed), and the arithmetic that combines checksums without the bytes.

A CRC is a polynomial over GF(2) modulo a fixed one. Appending n zero bytes multiplies it by x^(8n), so the checksum of
two consecutive ranges follows from their checksums and the second one's length, in whatever order they were read.
"""

from functools import cache

from isal import isal_zlib

__all__ = ["combine_crc32", "crc32", "crc32_of_zeros"]

_POLYNOMIAL = 0xEDB88320  # bit-reversed, as everything here: bit 31 is x^0
_ONE = 1 << 31
_X8 = 1 << 23
_ALL_ONES = 0xFFFFFFFF


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32 of bytes that follow others with the CRC-32 `value`."""
    result = isal_zlib.crc32(data, value)
    _clear_registers()
    return result


def _clear_registers() -> None:
    """Have a loop of numpy's clear the upper halves of vector registers when it ends.

    isal leaves them in use, which makes the digests of this thread, and of those that it starts, seven times as slow.
    """
    import numpy as np  # which a command's help does without

    np.negative(np.zeros(64, np.float32))


def combine_crc32(left: int, right: int, right_bytes: int) -> int:
    """Return the CRC-32 of two consecutive ranges; `right` is the CRC-32 of the second one, of `right_bytes` bytes."""
    return _product(left, _power_of_x8(right_bytes)) ^ right


def crc32_of_zeros(count: int) -> int:
    """Return the CRC-32 of `count` zero bytes."""
    return _product(_ALL_ONES, _power_of_x8(count)) ^ _ALL_ONES


@cache
def _power_of_x8(exponent: int) -> int:
    result, square = _ONE, _X8
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(left: int, right: int) -> int:
    result = 0
    while right:
        if right & _ONE:
            result ^= left
        right = right << 1 & _ALL_ONES
        left = left >> 1 ^ (_POLYNOMIAL if left & 1 else 0)
    return result
