import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files.wire import WireReader, build_head, build_varint, bytes_key, varint_key
from tests.support.ckpt_writer import MemoryFile, blob, number


def reader(data: bytes) -> WireReader:
    return WireReader(MemoryFile(data), len(data))


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    walk = reader(data)
    return [
        (key, walk.contents(walk.offset, value) if key & 7 == 2 else value) for key, value in walk.fields(len(data))
    ]


@given(st.integers(0, 2**64 - 1))
def test_varints_read_back(value: int) -> None:
    walk = reader(build_varint(value))
    assert walk.varint() == value
    assert walk.offset == len(build_varint(value))


def test_fields_of_a_message() -> None:
    data = number(1, 300) + blob(2, b"abc") + number(7, 0)
    assert fields(data) == [(varint_key(1), 300), (bytes_key(2), b"abc"), (varint_key(7), 0)]


def test_fixed_width_fields_are_skipped() -> None:
    data = bytes([3 << 3 | 1]) + bytes(8) + bytes([4 << 3 | 5]) + bytes(4) + number(1, 5)
    assert fields(data) == [(varint_key(1), 5)]


def test_contents_that_nobody_reads_are_skipped() -> None:
    data = build_head(bytes_key(1), 1 << 20) + bytes(1 << 20) + number(2, 7)
    file = MemoryFile(data)
    walk = WireReader(file, len(data))
    assert [key for key, _ in walk.fields(len(data))] == [bytes_key(1), varint_key(2)]
    assert sum(length for _, length in file.reads) < 200_000


def test_peek_does_not_advance_and_take_does() -> None:
    walk = reader(b"abcdef")
    assert (walk.peek(4), walk.offset) == (b"abcd", 0)
    assert (walk.take(4), walk.offset) == (b"abcd", 4)
    assert walk.peek(4) == b"ef"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80", "at byte 0: the file ends inside a number: truncated"),
        (b"\xff" * 10, "at byte 0: a number of more than 10 bytes"),
        (b"\x00\x00", "at byte 0: field key 0, which protobuf does not know"),
        (b"\x0b", "at byte 0: a field of wire type 3"),
        (
            number(1, 1) + b"\x12\x05abc",
            "at byte 2: the file ends in the middle of a 5-byte field: truncated",
        ),
    ],
)
def test_damage_is_reported_with_its_offset(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        fields(data)


def test_a_field_longer_than_the_message_around_it() -> None:
    inner = build_head(bytes_key(1), 9)
    data = blob(1, inner) + bytes(20)
    walk = reader(data)
    for _, length in walk.fields(len(data)):
        with pytest.raises(CheckpointError, match="a 9-byte field runs past byte 4, the end of its message: damaged"):
            list(walk.fields(walk.offset + length))
        break
