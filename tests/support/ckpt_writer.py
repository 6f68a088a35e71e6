"""Checkpoint files made and read by independent means: protobuf's own classes, wire bytes by hand, memory files."""

from collections.abc import Callable, Iterable, Sequence

from reshard.core.errors import CheckpointError
from reshard.core.files.model import Content, FilePlan
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.slices import Extent
from tests.support.messages import (
    BYTES,
    INT64,
    MESSAGE,
    OPTIONAL,
    REPEATED,
    REQUIRED,
    STRING,
    Fields,
    message_class,
)

_MESSAGES: dict[str, Fields] = {
    "Checkpoint": [("value", MESSAGE, REPEATED, "Value")],
    "Value": [
        ("tag", STRING, REQUIRED, ""),
        ("tensor", MESSAGE, OPTIONAL, "TensorProto"),
        ("maptensor", MESSAGE, OPTIONAL, "MapTensorProto"),
    ],
    "TensorProto": [
        ("dims", INT64, REPEATED, ""),
        ("tensor_type", STRING, REQUIRED, ""),
        ("tensor_content", BYTES, REQUIRED, ""),
    ],
    "MapTensorProto": [("tensor", MESSAGE, REPEATED, "TensorProto")],
}

CheckpointMessage = message_class("reshard_tests_checkpoint", _MESSAGES, "Checkpoint", {"Value": (1, 2)})


def checkpoint_bytes(*entries: tuple[str, str, Iterable[int], bytes]) -> bytes:
    """A `.ckpt` file, by protobuf's own classes: (name, tensor_type, dims, content) each."""
    message = CheckpointMessage()
    for name, tensor_type, dims, content in entries:
        value = message.value.add(tag=name)
        value.tensor.dims.extend(dims)
        value.tensor.tensor_type = tensor_type
        value.tensor.tensor_content = content
    data: bytes = message.SerializeToString()
    return data


def varint(value: int) -> bytes:
    digits = []
    while True:
        value, digit = divmod(value, 128)
        digits.append(digit + 128 if value else digit)
        if not value:
            return bytes(digits)


def blob(number: int, content: bytes) -> bytes:
    """A field of bytes on the wire."""
    return varint(number * 8 + 2) + varint(len(content)) + content


def number(field_number: int, value: int) -> bytes:
    """An integer field on the wire."""
    return varint(field_number * 8) + varint(value % 2**64)


class MemoryFile:
    """A SourceFile in memory that counts its reads; `size_bytes` may exceed `data`, the rest being zeros."""

    version = "1"

    def __init__(self, data: bytes, name: str = "model.ckpt", size_bytes: int | None = None) -> None:
        self.location: Location = parse_url(f"/somewhere/{name}")
        self.data = data
        self.size_bytes = len(data) if size_bytes is None else size_bytes
        self.reads: list[tuple[int, int]] = []

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.reads.append((offset, len(buffer)))
        if not 0 <= offset <= offset + len(buffer) <= self.size_bytes:
            raise CheckpointError(f"read of {len(buffer)} bytes at {offset} beyond {self.size_bytes}")
        buffer[:] = self.data[offset : offset + len(buffer)].ljust(len(buffer), b"\0")

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        for offset, length in ranges:
            buffer = bytearray(length)
            self.read_into(offset, memoryview(buffer))
            found.append(bytes(buffer))
        return found

    def close(self) -> None:
        pass


def extents_bytes(data: bytes, extents: Iterable[Extent]) -> bytes:
    """The bytes at `extents`, joined."""
    return b"".join(data[extent.offset : extent.offset + extent.length] for extent in extents)


def filled(plan: FilePlan, content: Callable[[str], bytes]) -> bytes:
    """The planned file, its contents given by parameter name."""
    parts = []
    for segment in plan.segments:
        if isinstance(segment, Content):
            part = content(segment.name)[segment.start : segment.stop]
            assert len(part) == segment.stop - segment.start
            parts.append(part)
        else:
            parts.append(segment)
    data = b"".join(parts)
    assert len(data) == plan.size_bytes
    return data
