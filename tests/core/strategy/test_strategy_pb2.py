"""The protobuf messages: the generated module is that of the .proto file beside it, and can live beside MindSpore's."""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from reshard.core.strategy import strategy_pb2
from tests.support.places import PROJECT


def test_generated_module_is_up_to_date(tmp_path: Path) -> None:
    written = tmp_path / "descriptors"
    source = "core/strategy/strategy.proto"
    assert protoc.main(["protoc", f"-I{PROJECT}", f"--descriptor_set_out={written}", f"{PROJECT}/{source}"]) == 0
    (descriptor,) = FileDescriptorSet.FromString(written.read_bytes()).file
    assert descriptor.name == source
    # generated modules leave out the names that fields have in JSON
    for message in descriptor.message_type:
        for field in message.field:
            field.ClearField("json_name")
    generated = FileDescriptorProto.FromString(strategy_pb2.DESCRIPTOR.serialized_pb)
    assert descriptor == generated


def test_messages_do_not_clash_with_mindspore_s() -> None:
    # protobuf allows each full name once in a process, and MindSpore has them in this package
    assert strategy_pb2.DESCRIPTOR.package != "mindspore.straspb"
