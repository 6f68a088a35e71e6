import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from reshard.core.errors import CheckpointError
from reshard.core.files import any_format, ckpt
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


def ckpt_file(*names: str, dims: tuple[int, ...] = (2, 2), content: bytes = bytes(16)) -> bytes:
    return checkpoint_bytes(*((name, "Float32", dims, content) for name in names))


def safetensors_file(*names: str, shape: tuple[int, ...] = (2, 2), value: float = 0) -> bytes:
    return save({name: np.full(shape, value, np.float32) for name in names})


TEXT_FILE = checkpoint_bytes(("w", "Float32", (1,), bytes(4)), ("note", "str", (0,), "one".encode("utf-32-le")))
WITH_CRC = ckpt_file("w", "v")
WITH_CRC += b"crc_num" + zlib.crc32(WITH_CRC).to_bytes(10)


@pytest.mark.parametrize(
    ("name", "first", "second", "is_known"),
    [
        ("a.ckpt", ckpt_file("w", "v"), ckpt_file("w", "v", content=b"\xff" * 16), True),
        ("a.ckpt", ckpt_file("w", "v"), ckpt_file("w", "x"), False),
        ("a.ckpt", ckpt_file("w", "v"), ckpt_file("w", "v", dims=(4, 1)), False),
        ("a.ckpt", ckpt_file("w", "v"), ckpt_file("v", "w"), False),
        ("a.ckpt", ckpt_file("w", "v"), ckpt_file("w", "v", "x"), False),
        ("a.ckpt", WITH_CRC, WITH_CRC[:-1] + b"\0", True),
        ("a.ckpt", ckpt_file("w", "v"), ckpt_file("w", content=b"\xff" * 16, dims=(4,)), False),
        ("a.ckpt", TEXT_FILE, TEXT_FILE, False),  # texts may differ on every rank
        ("a.ckpt", ckpt_file("w", "v", "w"), ckpt_file("w", "v", "w"), False),  # the later w counts
        ("a.safetensors", safetensors_file("w", "v"), safetensors_file("w", "v", value=1), True),
        ("a.safetensors", safetensors_file("w", "v"), safetensors_file("w", "x"), False),
        ("a.safetensors", safetensors_file("w", "v"), safetensors_file("w", "v", shape=(4, 1)), False),
    ],
)
def test_a_known_index_is_that_of_a_file_with_the_same_headers(
    name: str, first: bytes, second: bytes, is_known: bool
) -> None:
    known = any_format.KnownIndexes()
    index = any_format.read_index(MemoryFile(first, name), known)
    other = MemoryFile(second, name)
    found = any_format.read_index(other, known)
    assert found == any_format.read_index(other)
    assert (found is index) == is_known


def test_contents_that_end_like_a_crc_are_no_known_index() -> None:
    """The last bytes of a file with a CRC follow the contents; without one they belong to them."""
    plain = ckpt_file("w", content=b"\xff" * 24, dims=(6,))
    known = any_format.KnownIndexes()
    any_format.read_index(MemoryFile(plain, "a.ckpt"), known)
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        any_format.read_index(MemoryFile(plain[:-17] + b"crc_num" + bytes(10), "a.ckpt"), known)


def test_the_format_is_part_of_a_known_index() -> None:
    known = any_format.KnownIndexes()
    data = ckpt_file("w", "v")
    any_format.read_index(MemoryFile(data, "a.ckpt"), known)
    with pytest.raises(CheckpointError, match="looks like a .ckpt file"):
        any_format.read_index(MemoryFile(data, "a.safetensors"), known)


@pytest.mark.parametrize("content_bytes", [16, 40_000])
def test_a_known_index_is_compared_at_every_header(content_bytes: int) -> None:
    names = [f"w{number}" for number in range(200)]
    data = ckpt_file(*names, dims=(content_bytes // 4,), content=bytes(content_bytes))
    known = any_format.KnownIndexes()
    index = any_format.read_index(MemoryFile(data, "a.ckpt"), known)
    assert known.find(MemoryFile(data.replace(bytes(16), b"\xff" * 16), "a.ckpt")) is index
    for name in names[::33]:
        changed = data.replace(name.encode(), name.upper().encode(), 1)
        assert known.find(MemoryFile(changed, "a.ckpt")) is None


def test_threads_that_begin_together_parse_the_first_index_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parsed the same headers, one after the other: of 20,000 parameters for 0.07 s."""
    parsed = []
    read_index = ckpt.read_index

    def slow(*arguments: Any) -> FileIndex:
        parsed.append(arguments)
        time.sleep(0.1)
        return read_index(*arguments)

    monkeypatch.setattr(ckpt, "read_index", slow)
    known, data = any_format.KnownIndexes(), ckpt_file("w", "v")
    with ThreadPoolExecutor(4) as pool:
        indexes = list(pool.map(lambda _: any_format.read_index(MemoryFile(data, "a.ckpt"), known), range(4)))
    assert len(parsed) == 1
    assert len(set(map(id, indexes))) == 1


def test_a_damaged_first_file_keeps_no_thread_waiting() -> None:
    known, data = any_format.KnownIndexes(), ckpt_file("w", "v")
    with pytest.raises(CheckpointError):
        any_format.read_index(MemoryFile(data[:-1], "a.ckpt"), known)
    assert list(any_format.read_index(MemoryFile(data, "a.ckpt"), known).entries) == ["w", "v"]


def torch_archive(top: str, data: bytes = b"\x80\x02}q\x00.") -> bytes:
    return archive({"data.pkl": data, "data/0": bytes(64)}, prefix=f"{top}/")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("model.safetensors", torch_archive("model"), "a zip archive, as PyTorch saves: load it with torch.load"),
        ("model.ckpt", torch_archive("archive"), "a zip archive, as PyTorch saves: load it with torch.load"),
        ("last.ckpt", torch_archive("archive", b"\x80\x02X\x19\0\0\0pytorch-lightning_version"), "PyTorch Lightning"),
        ("old.ckpt", b"\x80\x02X\x19\0\0\0pytorch-lightning_versionq\x01", "a checkpoint of PyTorch Lightning"),
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
