import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.checkpoint.formats import crc32
from reshard.core.errors import CheckpointError
from tests.support.ckpt_writer import MemoryFile
from tests.support.remote_file import RemoteFile


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


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 30), st.integers(0, 5))
def test_parts(parts: list[bytes], block_bytes: int, offset: int) -> None:
    file = MemoryFile(bytes(offset) + b"".join(parts) + b"rest")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32, "BLOCK_BYTES", block_bytes)
        crcs = list(crc32.crc32_of_ranges(file, offset, [len(part) for part in parts]))
    assert crcs == [zlib.crc32(part) for part in parts]
    assert all(length <= block_bytes for _, length in file.reads)
    # front to back, nothing twice
    assert [start for start, _ in file.reads] == sorted({start for start, _ in file.reads})


def test_parts_of_a_remote_file() -> None:
    file = RemoteFile([], 20 << 20)
    lengths = [5, 0, 9 << 20, 100, 1 << 20]
    crcs = list(crc32.crc32_of_ranges(file, 1000, lengths))
    data = RemoteFile([], 20 << 20).read_many([(1000, sum(lengths))])[0]
    assert crcs == [zlib.crc32(data[sum(lengths[:n]) :][:length]) for n, length in enumerate(lengths)]
    assert [length for [(_, length)] in file.rounds] == [4 << 20, 4 << 20, (2 << 20) + 105]


def test_a_file_that_ends_before_its_parts() -> None:
    with pytest.raises(CheckpointError):
        list(crc32.crc32_of_ranges(MemoryFile(bytes(5)), 0, [6]))
    with pytest.raises(CheckpointError):
        list(crc32.crc32_of_ranges(RemoteFile([], 5), 0, [6]))
