import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.memory_file import MemoryFile


def test_reads_at_offsets() -> None:
    file = MemoryFile(b"0123456789", "ten")
    buffer = bytearray(3)
    file.read_into(4, memoryview(buffer))
    assert buffer == b"456"
    assert file.read_many([(0, 2), (9, 1), (10, 0)]) == [b"01", b"9", b""]
    assert file.size_bytes == 10


def test_bytes_beyond_its_end_are_an_error_that_names_it() -> None:
    file = MemoryFile(b"0123", "four")
    with pytest.raises(CheckpointError, match="four: ends at byte 4, earlier than it should: truncated"):
        file.read_into(2, memoryview(bytearray(3)))
    with pytest.raises(CheckpointError, match="truncated"):
        file.read_many([(0, 1), (4, 1)])
