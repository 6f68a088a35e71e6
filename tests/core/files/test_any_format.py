from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from reshard.core.errors import CheckpointError
from reshard.core.files import any_format
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat, FileIndex, OutputEntry
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import INT4, TEXT, dtype_from_name
from tests.support.ckpt_writer import MemoryFile, checkpoint_bytes, extents_bytes, filled
from tests.support.dcp import archive
from tests.support.places import FIXTURES

CKPT = checkpoint_bytes(("w", "Float32", [2], bytes(8)))
SAFETENSORS = save({"w": np.zeros(2)})


def read(path: Path) -> FileIndex:
    source = open_source(parse_url(str(path)))
    try:
        index = any_format.read_index(source)
        any_format.check_crc(source, index)
        return index
    finally:
        source.close()


@pytest.mark.parametrize("name", ["plain.ckpt", "crc.ckpt", "plain.safetensors", "crc.safetensors"])
def test_the_name_gives_the_format(name: str) -> None:
    index = read(FIXTURES / "formats" / name)
    assert index.format == name.split(".")[1]
    assert index.has_crc == name.startswith("crc")


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_encrypted_files_are_named_as_such(mode: str) -> None:
    with pytest.raises(CheckpointError, match=rf"encrypted_{mode}.ckpt: is encrypted with {mode}: name its key"):
        read(FIXTURES / "formats" / f"encrypted_{mode}.ckpt")


def test_a_strategy_file() -> None:
    with pytest.raises(CheckpointError, match=r"src_strategy\.ckpt: is named .ckpt, but looks like a strategy file"):
        read(FIXTURES / "conversions" / "case_7001" / "src_strategy.ckpt")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("model.ckpt", SAFETENSORS, "is named .ckpt, but looks like a .safetensors file"),
        ("model.safetensors", CKPT, "is named .safetensors, but looks like a .ckpt file"),
        ("model.safetensors", b"\xd9\x5e\x3a\x7f" + bytes(50), "an encrypted checkpoint file"),
        ("model.ckpt", b'{"current_stage": 1}', "looks like a JSON file, perhaps a strategy"),
        ("model.ckpt", b"PK\x03\x04" + bytes(50), "looks like a zip archive, as PyTorch saves"),
        ("model.ckpt", b"\x80\x02" + bytes(50), "looks like a Python pickle"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid ", "looks like a Git LFS pointer"),
        ("model.ckpt", b"", "the file is empty"),
        ("model.safetensors", b"", "the file is empty"),
        ("model.ckpt", b"no checkpoint", "at byte 0: "),
        ("model.safetensors", b"no checkpoint", "at byte 0: "),
        ("model.bin", CKPT, "not a checkpoint file's name, which ends in .ckpt or .safetensors"),
        ("ckpt", CKPT, "not a checkpoint file's name"),
    ],
)
def test_refused(name: str, data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        any_format.read_index(MemoryFile(data, name))
    assert str(caught.value).startswith(f"/somewhere/{name}: ")


@pytest.mark.parametrize("format", SELF_CONTAINED)
def test_round_trip_by_format(format: CheckpointFormat) -> None:
    entries = [
        OutputEntry("w", dtype_from_name("BFloat16"), (2, 2)),
        OutputEntry("q", INT4, (3,)),
        OutputEntry("note", TEXT, (4,), "é"),
    ]
    contents = {"w": b"abcdefgh", "q": b"ijk"}
    data = filled(any_format.plan_file(format, entries), contents.__getitem__)
    index = any_format.read_index(MemoryFile(data, f"model.{format}"))
    assert index.format is format
    assert [(e.dtype, e.shape, e.text) for e in index.entries.values()] == [(e.dtype, e.shape, e.text) for e in entries]
    for name, content in contents.items():
        assert extents_bytes(data, index.entries[name].extents) == content


@pytest.mark.parametrize("format", SELF_CONTAINED)
def test_a_name_given_twice(format: CheckpointFormat) -> None:
    entry = OutputEntry("w", INT4, (1,))
    with pytest.raises(CheckpointError, match="parameter 'w' is given twice"):
        any_format.plan_file(format, [entry, OutputEntry("v", INT4, (1,)), entry])


def torch_archive(top: str, data: bytes = b"\x80\x02}q\x00.") -> bytes:
    return archive({"data.pkl": data, "data/0": bytes(64)}, prefix=f"{top}/")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("model.safetensors", torch_archive("model"), "a zip archive, as PyTorch saves: rename it to end in .pt"),
        ("model.ckpt", torch_archive("archive"), "a zip archive, as PyTorch saves: rename it to end in .pt"),
        (
            "last.ckpt",
            torch_archive("archive", b"\x80\x02X\x19\0\0\0pytorch-lightning_version"),
            "PyTorch Lightning: rename it",
        ),
        (
            "old.ckpt",
            b"\x80\x02X\x19\0\0\0pytorch-lightning_versionq\x01",
            "a checkpoint of PyTorch Lightning: load it in PyTorch, and save it again",
        ),
        ("old.ckpt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle, as old versions of PyTorch save"),
        ("w.ckpt", archive({"w.npy": bytes(128)}, prefix=""), "a NumPy archive: load it with numpy.load"),
        ("_rank3_.safetensors", torch_archive("_rank3_"), "a PyTorch archive, which hyper_parallel saves"),
    ],
    ids=["zip .safetensors", "zip .ckpt", "Lightning", "old Lightning", "pickle", "npz", "hyper_parallel"],
)
def test_a_file_that_another_library_saved_is_called_what_it_is(name: str, data: bytes, kind: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        any_format.read_index(MemoryFile(data, name))
    assert f"{name}: is named .{name.rpartition('.')[2]}, but looks like" in str(raised.value)
    assert kind in str(raised.value)
