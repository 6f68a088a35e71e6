"""Whole files of torch.save: the tree that is read, and everything that is refused."""

import argparse
import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest

from reshard.core.errors import CheckpointError, LimitError
from reshard.core.files.model import OutputEntry, StridedContent
from reshard.core.files.torch_file import not_data, read_torch_file
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.tensor.dtypes import dtype_from_name
from tests.support.dcp import Opcodes, archive
from tests.support.remote_file import RemoteFile
from tests.support.torch_files import content_of, items_of, read, written

DATA = bytes(range(48))


def file_with(pickled: bytes, **records: bytes) -> bytes:
    return archive({"data.pkl": pickled, "byteorder": b"little", "data/0": DATA, "version": b"3\n"} | records)


def read_bytes(tmp_path: Path, data: bytes, *inert: str) -> Any:
    path = tmp_path / "file.pt"
    path.write_bytes(data)
    return read(path, *inert).root


def refusal(tmp_path: Path, data: bytes, *inert: str) -> str:
    with pytest.raises(CheckpointError) as refused:
        read_bytes(tmp_path, data, *inert)
    path = f"{tmp_path / 'file.pt'}: "
    assert str(refused.value).startswith(path)
    return str(refused.value).removeprefix(path)


def view(key: str = "0", elements: int = 12, start: int = 0, shape: tuple[int, ...] = (3, 4)) -> Opcodes:
    """The opcodes of a tensor of float32, in C order."""
    opcodes = Opcodes().of(b"ctorch._utils\n_rebuild_tensor_v2\n((")
    opcodes.text("storage").of(b"ctorch\nFloatStorage\n").text(key).text("cpu").of(struct.pack("<BH", 77, elements))
    strides = [b"K" + bytes([each]) for each in ((shape[1], 1) if len(shape) == 2 else (1,))]
    opcodes.of(b"tQ", struct.pack("<BH", 77, start), b"(", *(b"K" + bytes([each]) for each in shape), b"t(", *strides)
    return opcodes.of(b"t\x89ccollections\nOrderedDict\n)RtR")


def tree(*items: tuple[str, bytes]) -> bytes:
    opcodes = Opcodes().of(b"\x80\x02}(")
    for key, value in items:
        opcodes.text(key).of(value)
    return opcodes.of(b"u.").bytes()


W = view().bytes()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_kind_of_data_is_read(tmp_path: Path, protocol: int) -> None:
    several: defaultdict[str, list[int]] = defaultdict(list, a=[1])
    ordered = OrderedDict(b=2)
    ordered._metadata = {"": 1}  # type: ignore[attr-defined]
    shared = (0.9, 0.95)
    value = {
        "plain": [None, True, -(2**100), 1.5, "text", shared, shared, (), []],
        "bytes": [b"", b"\x00\x80\xff", b"x" * 300],
        "dicts": [several, ordered, OrderedDict()],
        "args": argparse.Namespace(layers=2),
        "stream": io.BytesIO(b"\xff"),
        (1, "key"): "tuple",
    }
    root = read_bytes(tmp_path, file_with(pickle.dumps(value, protocol)))
    found = items_of(root)
    assert [key for key, _ in root] == [*value]
    assert found["plain"] == value["plain"]
    assert found["bytes"] == value["bytes"]
    assert found["dicts"] == [Pairs([("a", [1])]), Pairs([("b", 2)]), Pairs()]
    assert found["args"] == PickledObject(Global("argparse", "Namespace"), (), Pairs([("layers", 2)]))
    assert found["stream"].made_by.name == "BytesIO"
    assert found["stream"].state == (b"\xff", 0, None)


def test_tensors_may_share_a_storage(tmp_path: Path) -> None:
    pickled = tree(
        ("whole", W), ("part", view(start=2, shape=(4,)).bytes()), ("overlapping", view(start=4, shape=(4,)).bytes())
    )
    data = file_with(pickled)
    (tmp_path / "file.pt").write_bytes(data)
    file = read(tmp_path / "file.pt")
    tensors = items_of(file.root)
    assert [content_of(data, tensor) for tensor in tensors.values()] == [DATA, DATA[8:24], DATA[16:32]]
    [storage] = file.storages
    assert data[storage.offset : storage.offset + storage.length] == DATA
    assert {tensor.crc.extent for tensor in tensors.values()} == {storage}


def test_strides_are_told(tmp_path: Path) -> None:
    pickled = tree(("w", W.replace(b"(K\x04K\x01t", b"(K\x01K\x03t")))
    [(_, tensor)] = read_bytes(tmp_path, file_with(pickled))
    assert tensor.extent is None
    assert isinstance(tensor.strided, StridedContent)
    assert tensor.strided.strides == (4, 12)


@pytest.mark.parametrize(
    "wrapped",
    [
        b"ctorch._utils\n_rebuild_parameter\n(" + W + b"\x88)tR",
        b"ctorch._utils\n_rebuild_parameter_with_state\n(" + W + b"\x88)}tR",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n"
        + W.removeprefix(b"ctorch._utils\n_rebuild_tensor_v2\n").removesuffix(b"R")
        + b"}tR",
    ],
)
def test_parameters_and_tensors_with_attributes_are_tensors(tmp_path: Path, wrapped: bytes) -> None:
    [(_, tensor)] = read_bytes(tmp_path, file_with(tree(("w", wrapped))))
    assert isinstance(tensor, StoredTensor)
    assert tensor.shape == (3, 4)


def test_a_tensor_of_a_known_class_is_a_record_of_what_it_was_made_of(tmp_path: Path) -> None:
    pickled = tree(
        (
            "sharded",
            Opcodes()
            .of(b"ctorch._tensor\n_rebuild_from_type_v2\n(cmake\nit\ncmesh\nSharded\n(cmesh\nSharded\nK\x07t}")
            .text("local")
            .of(view().getvalue(), b"stR")
            .getvalue(),
        )
    )
    assert refusal(tmp_path, file_with(pickled)).startswith(
        "record 'archive/data.pkl': at ['sharded']: has a tensor of the class 'mesh.Sharded'"
    )
    (tmp_path / "file.pt").write_bytes(file_with(pickled))
    sharded = Global("mesh", "Sharded")
    root = read(tmp_path / "file.pt", known=[("mesh", "Sharded")]).root
    found = items_of(root)["sharded"]
    assert (found.made_by, found.arguments) == (sharded, (sharded, 7))
    assert content_of(file_with(pickled), items_of(found.state)["local"]) == DATA


def test_a_known_object_of_many_tensors_is_read_once(tmp_path: Path) -> None:
    """A mesh lists all ranks, and each tensor refers to it: read again for each, it looked like a repeated part."""
    mesh = Opcodes().of(b"cmesh\nMesh\n)\x81q\x01(K\x01").of(b"K\x02" * 2000, b"tb").bytes()
    pickled = tree(("first", mesh), *((f"w{number}", b"h\x01") for number in range(3000)))
    (tmp_path / "file.pt").write_bytes(file_with(pickled))
    root = items_of(read(tmp_path / "file.pt", known=[("mesh", "Mesh")]).root)
    assert len(root) == 3001
    assert all(each is root["first"] for each in root.values())


def test_an_inert_object_does_not_serve_elsewhere(tmp_path: Path) -> None:
    known = Opcodes().of(b"cmesh\nMesh\n)\x81q\x01cother\nThing\n)\x81b").bytes()
    pickled = tree(("args", known), ("w", b"h\x01"))
    (tmp_path / "file.pt").write_bytes(file_with(pickled))
    with pytest.raises(CheckpointError, match="has 'other.Thing', which is not data"):
        read(tmp_path / "file.pt", "args", known=[("mesh", "Mesh")])


class Foreign:
    """A class that is not data."""


def test_other_objects_are_inert_below_the_keys_for_them(tmp_path: Path) -> None:
    value = {"args": {"made": Foreign(), "names": {1, 2}, "frozen": frozenset([3])}, "w": 1}
    for protocol in (2, 4):
        data = file_with(pickle.dumps(value, protocol))
        [(_, args), _] = read_bytes(tmp_path, data, "args")
        made = dict(args)["made"]
        assert made.made_by == Global(__name__, "Foreign")
        message = refusal(tmp_path, data, "rng_state")
        assert message == (
            f"record 'archive/data.pkl': at ['args']['made']: has '{__name__}.Foreign', which is not data and was not "
            "run; save the checkpoint without it"
        )


def test_inert_keys_are_those_at_the_top(tmp_path: Path) -> None:
    for value in ({"model": {"args": Foreign()}}, [{"args": Foreign()}], {"args": 1, "model": Foreign()}):
        assert "Foreign', which is not data" in refusal(tmp_path, file_with(pickle.dumps(value)), "args")


def test_keys_are_judged_like_values(tmp_path: Path) -> None:
    pickled = b"\x80\x02}(cos\nsystem\nNu."
    assert "has 'os.system', which is not data" in refusal(tmp_path, file_with(pickled))


def _by_stack(module: str, name: str) -> bytes:
    return Opcodes().text(module).text(name).of(b"\x93").bytes()


@pytest.mark.parametrize(
    ("hostile", "name"),
    [
        (b"cos\nsystem\n", "os.system"),
        (b"cos\nsystem\n(" + Opcodes().text("touch x").bytes() + b"tR", "os.system"),
        (_by_stack("torch", "os.system") + b")R", "torch.os.system"),
        (_by_stack("collections", "OrderedDict.fromkeys") + b")R", "collections.OrderedDict.fromkeys"),
        (b"cbuiltins\neval\n)R", "builtins.eval"),
        (b"ccollections\ndefaultdict\n(cos\nsystem\ntR", "collections.defaultdict"),
        (b"ccollections\nOrderedDict\n(NtR", "collections.OrderedDict"),
        (b"c_codecs\nencode\n(NNtR", "_codecs.encode"),
        (b"ctorch\nSize\n)R", "torch.Size"),
    ],
)
def test_hostile_names_are_refused_by_name(tmp_path: Path, hostile: bytes, name: str) -> None:
    message = refusal(tmp_path, file_with(tree(("ok", b"N"), ("w", hostile))), "args")
    assert f"at ['w']: has {name!r}, which is not data and was not run" in message


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        (b"cos\nsystem\n}b", "sets the state of something that has none"),
        (b"cos\nsystem\n)R)R", "constructs something without a name"),
        (
            b"c__builtin__\ngetattr\n(cshards\nSharded\nX\x05\x00\x00\x00StatetR)R",
            "constructs something without a name, by __builtin__.getattr of 'shards.Sharded, State'",
        ),
        (b"]q\x00h\x00a", "nests deeper than 100 levels, or contains itself"),
        (b"}q\x00(Kah\x00u", "nests deeper than 100 levels, or contains itself"),
        (b"cargparse\nNamespace\n)Rq\x00h\x00b", "nests deeper than 100 levels, or contains itself"),
        (b"]" * 200 + b"a" * 199, "nests deeper than 100 levels"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "describes no tensor"),
        (b"ctorch._tensor\n_rebuild_from_type_v2\n)R", "describes no tensor"),
        (view("7").bytes(), "has a tensor in the storage '7', which the file does not have"),
        (view(elements=11, shape=(4,)).bytes(), "its storage is said to have 44 bytes, it has 48"),
        (view(start=1).bytes(), "ends after its storage of 48 bytes"),
        (W.replace(b"tR", b"}X\x01\x00\x00\x00n\x88stR"), "stored bytes are conjugated or negated"),
        (b"(" + Opcodes().text("storage").bytes() + b"tQ", "has a storage that belongs to no tensor"),
        (b"c_codecs\nencode\n(" + Opcodes().text("€").text("latin1").bytes() + b"tR", "has bytes above 255"),
        (b"\x97", "has the opcode 0x97"),
    ],
)
def test_hostile_pickles_are_refused(tmp_path: Path, hostile: bytes, message: str) -> None:
    for inert in ((), ("w",)):
        if inert and "storage that belongs" in message:
            continue
        assert message in refusal(tmp_path, file_with(tree(("w", hostile))), *inert)


def test_lists_that_double_are_refused(tmp_path: Path) -> None:
    bomb = b"]q\x00" + b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(90))
    message = refusal(tmp_path, file_with(b"\x80\x02(" + bomb + b"l."))
    assert "repeats its parts again and again: damaged, or made to fill the time" in message


def test_a_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    assert "has the key 'w' twice: damaged" in refusal(tmp_path, file_with(tree(("w", b"N"), ("w", b"N"))))


def test_a_pickle_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    data = file_with(b"\x80\x02N." + bytes(24 << 20))
    with metadata_limited(1), pytest.raises(LimitError, match=r"file\.pt: reading its metadata would take"):
        read_bytes(tmp_path, data)


def test_names_bytes_and_files_that_are_no_archives(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"") == "is not a zip archive: damaged, or not what torch.save writes"
    assert refusal(tmp_path, b"\x80\x02.") == (
        "is saved in PyTorch's format before 1.6, or is a plain pickle; load it in PyTorch and save it again: "
        "torch.save(torch.load(FILE), NEW_FILE)"
    )
    assert "is a TorchScript program" in refusal(tmp_path, file_with(b"N.", **{"constants.pkl": b"N."}))
    assert "is of byte order 'big', reshard reads little" in refusal(tmp_path, file_with(b"N.", byteorder=b"big"))
    assert "has 2 records 'data.pkl'" in refusal(tmp_path, file_with(b"N.", **{"x/data.pkl": b"N."}))
    assert "at byte 0: ends at byte 0" not in refusal(tmp_path, file_with(b""))
    packed = archive({"data.pkl": b"N." * 99, "data/0": DATA}, compression=zipfile.ZIP_DEFLATED)
    assert "'archive/data.pkl' is compressed or encrypted" in refusal(tmp_path, packed)


def test_records_that_overlap_are_refused(tmp_path: Path) -> None:
    data = bytearray(file_with(tree(("w", W)), **{"data/1": DATA}))
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        first, second = (file.getinfo(f"archive/data/{number}").header_offset for number in (0, 1))
    place = data.rindex(b"archive/data/1") - 4
    assert struct.unpack_from("<L", data, place) == (second,)
    struct.pack_into("<L", data, place, first)
    assert "names 'archive/data/1' at byte" in refusal(tmp_path, bytes(data))


def test_a_changed_pickle_is_refused(tmp_path: Path) -> None:
    data = file_with(tree(("w", W))).replace(b"FloatStorage", b"LongStorage\n", 1)
    assert "does not have its CRC-32" in refusal(tmp_path, data)


def _of_npu(*more: bytes) -> bytes:
    builder = W.replace(b"torch._utils\n_rebuild_tensor_v2", b"torch_npu.utils.storage\n_rebuild_npu_tensor")
    return builder.removesuffix(b"tR") + b"".join(more) + b"tR"


def test_tensors_of_older_torch_npu(tmp_path: Path) -> None:
    data = file_with(tree(("w", _of_npu(b"K\x02"))))
    [(_, tensor)] = read_bytes(tmp_path, data)
    assert content_of(data, tensor) == DATA
    for more in ((), (b"K\x02", b"K\x02"), (b"}",), (b"K\x1d",)):
        assert "describes a tensor in a format of torch_npu's; save what its cpu() gives" in refusal(
            tmp_path, file_with(tree(("w", _of_npu(*more))))
        )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "_rebuild_qtensor",
            "has a quantized tensor (torch._utils._rebuild_qtensor), which reshard does not read; save",
        ),
        ("_rebuild_sparse_csr_tensor", "has a sparse tensor (torch._utils._rebuild_sparse_csr_tensor)"),
        ("_rebuild_device_tensor_from_numpy", "has a tensor of another device (torch._utils._rebuild_device_tensor_fr"),
        ("_rebuild_device_tensor_from_cpu_tensor", "which reshard does not read; save what its cpu() gives"),
    ],
)
def test_other_tensors_of_torch_are_called_by_their_names(function: str, message: str, tmp_path: Path) -> None:
    pickled = tree(("w", f"ctorch._utils\n{function}\n)R".encode()))
    assert message in refusal(tmp_path, file_with(pickled))


def test_tensors_of_other_classes_are_records_below_inert_keys(tmp_path: Path) -> None:
    made = W.removeprefix(b"ctorch._utils\n_rebuild_tensor_v2\n").removesuffix(b"R")
    of_class = b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmesh\nDTensor\n" + made
    parameter = b"ctorch._utils\n_rebuild_parameter\n(" + of_class + b"}tR" + b"\x88)tR"
    for value in (of_class + b"}tR", parameter):
        data = file_with(tree(("w", value)))
        assert "has a tensor of the class 'mesh.DTensor', of which this is one rank's part; name" in refusal(
            tmp_path, data
        )
        [(_, found)] = read_bytes(tmp_path, data, "w")
        assert isinstance(found, PickledObject)
        assert not_data(found).startswith("has a tensor of the class 'mesh.DTensor', of which")


def test_nothing_is_imported_or_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {touched}",)

    for protocol in (2, 4, 5):
        read_bytes(tmp_path, file_with(pickle.dumps({"args": Hostile()}, protocol)), "args")
    assert not touched.exists()


def _remote(data: bytes) -> RemoteFile:
    return RemoteFile([(0, data)], len(data), "memory:///x/model.pt")


def _of_large_tensors(count: int) -> bytes:
    entries = {
        f"w{number}": (OutputEntry(f"w{number}", dtype_from_name("UInt8"), (20_000,)), bytes([number]) * 20_000)
        for number in range(count)
    }
    return written({name: TensorPlace(name) for name in entries}, entries)


def test_a_remote_file_takes_few_requests(tmp_path: Path) -> None:
    data = _of_large_tensors(200)
    file = _remote(data)
    found = read_torch_file(file)
    assert isinstance(found.root, Pairs)
    assert len(found.root) == 200
    assert file.requests <= 8
    (tmp_path / "file.pt").write_bytes(data)
    assert found == read(tmp_path / "file.pt")


def test_remote_records_that_are_not_aligned_are_found_by_their_headers(tmp_path: Path) -> None:
    for data in (file_with(tree(("w", W))), _without_crc(_of_large_tensors(3))):
        (tmp_path / "file.pt").write_bytes(data)
        assert read_torch_file(_remote(data)) == read(tmp_path / "file.pt")


def _without_crc(data: bytes) -> bytes:
    """As torch writes it if its CRCs are turned off."""
    changed = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        for info in file.infolist():
            if "/data/" in info.filename:
                place = data.rindex(info.filename.encode()) - 30
                changed[place : place + 4] = bytes(4)
                place = data.index(b"PK\x07\x08", info.header_offset) + 4
                changed[place : place + 4] = bytes(4)
    return bytes(changed)
