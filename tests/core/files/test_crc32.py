import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.files import crc32


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_of_bytes(data: bytes, before: int) -> None:
    assert crc32.crc32(data, before) == zlib.crc32(data, before)
    assert crc32.crc32(memoryview(bytearray(data))) == zlib.crc32(data)


@given(st.binary(), st.binary())
def test_joined(left: bytes, right: bytes) -> None:
    joined = crc32.combine_crc32(zlib.crc32(left), zlib.crc32(right), len(right))
    assert joined == zlib.crc32(left + right)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000, 1 << 20])
def test_zeros(count: int) -> None:
    assert crc32.crc32_of_zeros(count) == zlib.crc32(bytes(count))


def test_zeros_beyond_any_memory_take_no_time() -> None:
    half = crc32.crc32_of_zeros(1 << 62)
    assert crc32.combine_crc32(half, half, 1 << 62) == crc32.crc32_of_zeros(1 << 63)
