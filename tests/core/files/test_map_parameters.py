import numpy as np
import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.map_parameters import build_map_parameter, parse_map_parameter
from tests.support.ckpt_writer import CheckpointMessage

TABLE = [np.array([1, 2], np.int32), np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 1], np.int32)]


def test_message_is_what_protobuf_reads() -> None:
    value = CheckpointMessage().value.add(tag="t")
    value.maptensor.ParseFromString(build_map_parameter(TABLE))
    assert [(list(part.dims), part.tensor_type, part.tensor_content) for part in value.maptensor.tensor] == [
        ([2], "int32", TABLE[0].tobytes()),
        ([2, 3], "float32", TABLE[1].tobytes()),
        ([2], "int32", TABLE[2].tobytes()),
    ]


def test_messages_are_joined() -> None:
    message = build_map_parameter(TABLE)
    for found, expected in zip(parse_map_parameter([message, message], "t"), TABLE, strict=True):
        np.testing.assert_array_equal(found, np.concatenate([expected, expected]))
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([b"\x0a"], "map parameter 't'.*the file ends inside a number"),
        ([build_map_parameter(TABLE), build_map_parameter(TABLE[:2])], "different numbers of arrays"),
        ([build_map_parameter(TABLE[:1]), build_map_parameter(TABLE[1:2])], "do not fit together"),
        ([build_map_parameter(TABLE).replace(b"int32", b"int99")], "int99"),
        ([build_map_parameter(TABLE).replace(b"int32", b"int64")], "damaged"),
    ],
)
def test_damaged(messages: list[bytes], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        parse_map_parameter(messages, "t")
