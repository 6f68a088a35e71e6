"""protobuf messages by protobuf's own classes, from the fields that MindSpore's files have."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

INT64, INT32, STRING, MESSAGE, BYTES, UINT32 = 3, 5, 9, 11, 12, 13
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3

Fields = Sequence[tuple[str, int, int, str]]
"""Name, type, label and, of a message, its name; numbered from 1."""


def message_class(package: str, messages: Mapping[str, Fields], name: str, either: Mapping[str, Sequence[int]]) -> Any:
    """The class of one of the messages; `either` are the places of fields of which a message has just one."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for number, (field_name, kind, label, type_name) in enumerate(fields, 1):
            qualified = f".{package}.{type_name}" if type_name else None
            message.field.add(number=number, name=field_name, type=kind, label=label, type_name=qualified)
        if message_name in either:
            message.oneof_decl.add(name="data")
            for place in either[message_name]:
                message.field[place].oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
