"""Map parameters: hash tables, stored in a `.ckpt` as MapTensorProto messages and loaded by MindSpore as three arrays.

    MapTensorProto  1: tensor, repeated TensorProto: keys, values, status
    TensorProto     1: dims, repeated int64; 2: tensor_type, numpy's name; 3: tensor_content

A table may be in several messages; arrays at the same position are concatenated along axis 0.
"""

from collections.abc import Sequence

import numpy as np

from reshard.core.errors import CheckpointError
from reshard.core.files.memory_file import MemoryFile
from reshard.core.files.numpy_values import bytes_of
from reshard.core.files.wire import WireReader, build_head, build_varint, bytes_key, varint_key

_TENSOR = bytes_key(1)
_DIM, _PACKED_DIMS, _TYPE, _CONTENT = varint_key(1), bytes_key(1), bytes_key(2), bytes_key(3)


def parse_map_parameter(messages: Sequence[bytes], name: str) -> list[np.ndarray]:
    """Parse the arrays of a map parameter; `name` identifies it in messages.

    Raises:
        CheckpointError: the messages are not a map parameter's.
    """
    messages_arrays = [_parse_message(message, name) for message in messages]
    if len({len(arrays) for arrays in messages_arrays}) > 1:
        raise CheckpointError(f"map parameter {name!r}: its messages have different numbers of arrays: damaged")
    try:
        return [np.concatenate(arrays) for arrays in zip(*messages_arrays, strict=True)]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"map parameter {name!r}: its messages do not fit together ({error}): damaged") from None


def build_map_parameter(arrays: Sequence[np.ndarray]) -> bytes:
    """Build the message of a map parameter's keys, values and status."""
    return b"".join(_field(_TENSOR, _build_tensor(array)) for array in arrays)


def _parse_message(message: bytes, name: str) -> list[np.ndarray]:
    reader = WireReader(MemoryFile(message, f"map parameter {name!r}"), len(message))
    return [
        _parse_tensor(reader, reader.offset + length, name)
        for key, length in reader.fields(len(message))
        if key == _TENSOR
    ]


def _parse_tensor(reader: WireReader, stop: int, name: str) -> np.ndarray:
    dims: list[int] = []
    type_name, content = "", b""
    for key, value in reader.fields(stop):
        if key == _DIM:
            dims.append(value)
        elif key == _PACKED_DIMS:
            packed_stop = reader.offset + value
            while reader.offset < packed_stop:
                dims.append(reader.varint())
        elif key == _TYPE:
            type_name = reader.contents(reader.offset, value).decode(errors="replace")
        elif key == _CONTENT:
            content = reader.contents(reader.offset, value)
    try:
        if not type_name.isalnum():  # numpy also accepts descriptions of records
            raise TypeError(f"{type_name!r} is not an element type")
        return np.frombuffer(content, np.dtype(type_name)).reshape(dims)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"map parameter {name!r}: {error}: damaged, or of a kind not known here") from None


def _build_tensor(array: np.ndarray) -> bytes:
    dims = b"".join(build_varint(_DIM) + build_varint(length) for length in array.shape)
    return dims + _field(_TYPE, array.dtype.name.encode()) + _field(_CONTENT, bytes(bytes_of(array)))


def _field(key: int, content: bytes) -> bytes:
    return build_head(key, len(content)) + content
