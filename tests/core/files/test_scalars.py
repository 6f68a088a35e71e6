import math
import struct

import pytest

from reshard.core.changes.info_texts import InfoValue
from reshard.core.files import ckpt
from reshard.core.files.scalars import MAX_SCALARS, json_value, read_scalars
from tests.support.ckpt_writer import MemoryFile, checkpoint_bytes


def scalars(*entries: tuple[str, str, list[int], bytes]) -> dict[str, InfoValue]:
    file = MemoryFile(checkpoint_bytes(*entries))
    return read_scalars(file, ckpt.read_index(file))


@pytest.mark.parametrize(
    ("dtype", "content", "value"),
    [
        ("Int8", b"\xff", -1),
        ("UInt8", b"\xff", 255),
        ("Int64", struct.pack("<q", -5), -5),
        ("Float32", struct.pack("<f", 0.5), 0.5),
        ("Float16", struct.pack("<e", 1.5), 1.5),
        ("BFloat16", b"\x80\x3f", 1.0),
        ("Bool", b"\1", True),
    ],
)
def test_numbers(dtype: str, content: bytes, value: InfoValue) -> None:
    assert scalars(("step", dtype, [], content)) == {"step": value}


def test_tensors_are_left_out_and_texts_are_not() -> None:
    found = scalars(
        ("w", "Int8", [3], b"abc"), ("note", "str", [0], "hi".encode("utf-32-le")), ("step", "Int8", [], b"\7")
    )
    assert found == {"note": "hi", "step": 7}
    assert list(found) == ["note", "step"]


def test_a_file_of_scalars_is_not_read_whole() -> None:
    entries = [(f"s{place}", "Int8", list[int](), b"\1") for place in range(MAX_SCALARS + 5)]
    assert list(scalars(*entries)) == [f"s{place}" for place in range(MAX_SCALARS)]


def test_json_has_no_numbers_that_are_not_finite() -> None:
    assert [json_value(value) for value in (math.inf, math.nan, 0.5, 3, True, "x")] == ["inf", "nan", 0.5, 3, True, "x"]
