import io
import math
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard import mindspore
from reshard.core.files.numpy_values import INT4
from tests.support.checkpoints import ckpt
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.format_cases import EXPECTED, FORMATS, KEYS, check_appended, check_parameters
from tests.support.places import FIXTURES

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("name", ["plain.ckpt", "crc.ckpt"])
def test_ckpt(name: str) -> None:
    found = mindspore.load_checkpoint(str(FORMATS / name), crc_check=name == "crc.ckpt")
    check_parameters(found)
    check_appended(found)
    assert list(found)[: len(EXPECTED["params"])] == list(EXPECTED["params"])  # the file's order


@pytest.mark.parametrize("name", ["plain.safetensors", "crc.safetensors"])
def test_safetensors(name: str) -> None:
    path = str(FORMATS / name)
    found = mindspore.load_checkpoint(path, format="safetensors", crc_check=name == "crc.safetensors")
    check_parameters(found, set(found))
    assert list(found) == sorted(found)
    assert len(found) >= 9


@pytest.mark.parametrize("mode", KEYS)
def test_encrypted(mode: str) -> None:
    found = mindspore.load_checkpoint(str(FORMATS / f"encrypted_{mode}.ckpt"), dec_key=KEYS[mode], dec_mode=mode)
    check_parameters(found)


def test_arrays_are_the_callers_own(tmp_path: Path) -> None:
    found = mindspore.load_checkpoint(ckpt(tmp_path / "a.ckpt", w=FLOATS, s=FLOATS[0, 0]))
    w, s = found["w"], found["s"]
    assert isinstance(w, np.ndarray)
    assert isinstance(s, np.ndarray)
    assert s.shape == ()
    w += 1
    assert w.flags.writeable


def test_safetensors_in_memory() -> None:
    content = io.BytesIO((FORMATS / "plain.safetensors").read_bytes())
    found = mindspore.load_checkpoint(content, format="safetensors")
    check_parameters(found, set(found))
    with pytest.raises(ValueError, match=r"^BytesIO\.safetensors: .*truncated"):
        mindspore.load_checkpoint(io.BytesIO(content.getvalue()[:-1]), format="safetensors")


def test_remote_files() -> None:
    target = fsspec.filesystem("memory")
    for name in ("plain.ckpt", "plain.safetensors"):
        target.pipe_file(f"/loading/{name}", (FORMATS / name).read_bytes())
    check_parameters(mindspore.load_checkpoint("memory://loading/plain.ckpt"))
    found = mindspore.load_checkpoint("memory://loading/plain.safetensors", format="safetensors")
    check_parameters(found, set(found))
    assert (
        mindspore.load_segmented_checkpoints("memory://loading").keys()
        == mindspore.load_checkpoint("memory://loading/plain.ckpt").keys()
    )
    target.rm("/loading", recursive=True)


def test_dtypes_of_others_are_passed_over_or_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    save_file({"a": np.ones(2, np.float32), "z": np.ones(2, np.complex64)}, path)
    with pytest.raises(ValueError, match=r"m\.safetensors: parameter 'z': C64 cannot be read as an array"):
        mindspore.load_checkpoint(path, format="safetensors")
    assert mindspore.load_checkpoint(path, format="safetensors", choice_func="a".__eq__).keys() == {"a"}


def test_packed_integers_keep_their_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Int4", (2, 3), b"\x12\x34\x56\x78\x9a\xbc")))
    found = mindspore.load_checkpoint(str(path))["w"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int8
    assert found.dtype.metadata == INT4.metadata
    assert found.shape == (2, 3)


def test_map_parameters_are_three_arrays(tmp_path: Path) -> None:
    table = [np.array([1, 2], np.int32), FLOATS, np.array([0, 1], np.int32)]
    path = str(tmp_path / "a.ckpt")
    mindspore.save_checkpoint({"w": FLOATS, "table": table}, path)
    # a table that is in two messages
    content = Path(path).read_bytes()
    message = content[content.index(b"\n\x05table") - 2 :]
    Path(tmp_path / "b.ckpt").write_bytes(content + message)
    found = mindspore.load_checkpoint(str(tmp_path / "b.ckpt"))["table"]
    assert isinstance(found, list)
    for array, expected in zip(found, table, strict=True):
        np.testing.assert_array_equal(array, np.concatenate([expected, expected]))


# what is taken


@pytest.fixture
def model(tmp_path: Path) -> str:
    return ckpt(tmp_path / "model.ckpt", **dict.fromkeys(("conv1.w", "conv2.w", "dense.w"), FLOATS))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"choice_func": lambda name: name.startswith("conv")}, {"conv1.w", "conv2.w"}),
        ({"specify_prefix": "conv"}, {"conv1.w", "conv2.w"}),
        ({"specify_prefix": ["conv1", "dense"]}, {"conv1.w", "dense.w"}),
        ({"filter_prefix": ("conv1", "x")}, {"conv2.w", "dense.w"}),
        ({"filter_prefix": "conv1", "specify_prefix": "conv"}, {"conv2.w"}),
        ({"specify_prefix": "dense", "choice_func": lambda name: False}, {"dense.w"}),
    ],
)
def test_what_is_taken(model: str, options: dict[str, Any], names: set[str]) -> None:
    assert set(mindspore.load_checkpoint(model, **options)) == names


def test_a_choice_that_cannot_be_made(model: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.ckpt: choice_func: 'int' object is not callable"):
        mindspore.load_segmented_checkpoints(str(tmp_path), choice_func=5)  # type: ignore[arg-type]
    # as in MindSpore, it is not asked where prefixes decide, and its own exception comes from .safetensors files
    assert mindspore.load_checkpoint(model, specify_prefix="dense", choice_func=5).keys() == {"dense.w"}  # type: ignore[arg-type]
    save_file({"a": FLOATS}, tmp_path / "a.safetensors")
    with pytest.raises(TypeError, match="'int' object is not callable"):
        mindspore.load_checkpoint(str(tmp_path / "a.safetensors"), choice_func=5, format="safetensors")  # type: ignore[arg-type]


def test_prefixes_hold_for_safetensors_too(tmp_path: Path) -> None:
    save_file({"a": FLOATS, "b": FLOATS}, tmp_path / "a.safetensors")
    found = mindspore.load_checkpoint(str(tmp_path / "a.safetensors"), filter_prefix="a", format="safetensors")
    assert set(found) == {"b"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"specify_prefix": "x"}, ValueError, "no parameter is left of it"),
        ({"choice_func": lambda name: False}, ValueError, "no parameter is left of it"),
        ({"choice_func": 5}, ValueError, r"model\.ckpt: choice_func: 'int' object is not callable"),
        ({"choice_func": {}.__getitem__}, ValueError, r"model\.ckpt: choice_func: 'conv1\.w'"),
        ({"specify_prefix": 5}, TypeError, "not int"),
        ({"filter_prefix": ["a", 5]}, TypeError, "made of strings, not of int"),
        ({"filter_prefix": ""}, ValueError, "cannot be empty"),
        ({"filter_prefix": []}, ValueError, "cannot be empty"),
        ({"dec_key": "secret"}, ValueError, "'dec_key' has to be None or bytes, not str"),
        ({"dec_key": b"0" * 5}, ValueError, "dec_key: the key has 5 bytes"),
        ({"dec_key": b"0" * 16, "dec_mode": "ROT13"}, ValueError, "'ROT13' goes with 'dec_key'"),
        ({"dec_key": b"0" * 16}, ValueError, "is not encrypted"),
        ({"dec_mode": 5}, ValueError, "'dec_mode' has to be str"),
        ({"crc_check": 1}, ValueError, "'crc_check' has to be bool, not 1"),
        ({"remove_redundancy": 1}, ValueError, "'remove_redundancy' has to be bool, not 1"),
        ({"format": "npz"}, ValueError, "'format' has to be 'ckpt' or 'safetensors', not 'npz'"),
        ({"format": "safetensors"}, ValueError, "does not end in 'safetensors'"),
        ({"format": "safetensors", "dec_key": b"0" * 16}, ValueError, "never encrypted"),
        ({"format": "safetensors", "dec_mode": "AES-CBC"}, ValueError, "never encrypted"),
        ({"net": 5}, TypeError, "a dict of numpy arrays here"),
    ],
)
def test_refused(model: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mindspore.load_checkpoint(model, **options)


def test_no_key_is_shown(model: str) -> None:
    with pytest.raises(ValueError, match="dec_key") as refusal:
        mindspore.load_checkpoint(model, dec_key="secret")  # type: ignore[arg-type]
    assert "secret" not in str(refusal.value)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    def load(name: str, **options: Any) -> None:
        mindspore.load_checkpoint(str(tmp_path / name), **options)

    content = (FORMATS / "plain.ckpt").read_bytes()
    (tmp_path / "empty.ckpt").touch()
    (tmp_path / "short.ckpt").write_bytes(content[:-3])
    (tmp_path / "crc.ckpt").write_bytes(content + b"crc_num" + bytes(10))
    (tmp_path / "there.ckpt").mkdir()
    with pytest.raises(ValueError, match=r"no\.ckpt: cannot read it: no such file"):
        load("no.ckpt")
    with pytest.raises(ValueError, match="the file is empty"):
        load("empty.ckpt")
    with pytest.raises(ValueError, match="truncated or damaged"):
        load("short.ckpt")
    with pytest.raises(ValueError, match="wrong CRC-32"):
        load("crc.ckpt", crc_check=True)
    with pytest.raises(ValueError, match="directory"):
        load("there.ckpt")
    with pytest.raises(TypeError, match="has to be a string, not int"):
        mindspore.load_checkpoint(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot be given in memory"):
        mindspore.load_checkpoint(io.BytesIO(content))
    load("crc.ckpt")


def test_a_directory_of_another_library_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ValueError, match="is a GGUF model of llama.cpp"):
        mindspore.load_segmented_checkpoints(str(tmp_path))


@pytest.mark.parametrize("mode", KEYS)
def test_encrypted_files_want_their_key(mode: str) -> None:
    path = str(FORMATS / f"encrypted_{mode}.ckpt")
    with pytest.raises(ValueError, match=f"is encrypted: give its key as 'dec_key', and 'dec_mode', {mode} perhaps"):
        mindspore.load_checkpoint(path)
    with pytest.raises(ValueError, match="encrypted_"):
        mindspore.load_checkpoint(path, dec_key=KEYS[mode][::-1], dec_mode=mode)


def test_changed_ciphers_are_not_loaded(tmp_path: Path) -> None:
    content = bytearray((FORMATS / "encrypted_AES-GCM.ckpt").read_bytes())
    content[-40] ^= 1
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match="fails its tag"):
        mindspore.load_checkpoint(str(tmp_path / "a.ckpt"), dec_key=KEYS["AES-GCM"])


def test_warnings_name_the_file() -> None:
    with pytest.warns(UserWarning, match=r"plain\.ckpt: carries no CRC") as warned:
        mindspore.load_checkpoint(str(FORMATS / "plain.ckpt"), crc_check=True)
    assert warned[0].filename == __file__
    path = FORMATS / "redundancy_removed/src_safetensors/rank_1/checkpoint_1.safetensors"
    with pytest.warns(UserWarning, match="remove_redundancy=True: slices may be missing"):
        mindspore.load_checkpoint(str(path), format="safetensors")
    mindspore.load_checkpoint(str(path), format="safetensors", remove_redundancy=True)


def test_a_network_is_filled(model: str) -> None:
    network: dict[str, np.ndarray] = {"conv1.w": np.zeros((2, 3), np.float16), "conv2.w": np.zeros((2, 3), np.float32)}
    first = network["conv1.w"]
    found = mindspore.load_checkpoint(model, network)
    assert len(found) == 3
    np.testing.assert_array_equal(first, FLOATS.astype(np.float16))
    network["nobody"] = np.zeros(1, np.float32)
    with pytest.warns(UserWarning, match="not in the checkpoint, and left as they were: nobody"):
        mindspore.load_checkpoint(model, network)


def test_a_network_is_filled_by_suffix(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        ckpt(tmp_path / "parts" / f"{name}.ckpt", **{f"net.{name}.w": FLOATS + number})
    network = {"a.w": np.zeros((2, 3), np.float32), "b.w": np.zeros((2, 3), np.float32)}
    with pytest.warns(UserWarning, match=r"'a\.w' from 'net\.a\.w', 'b\.w' from 'net\.b\.w'") as caught:
        mindspore.load_segmented_checkpoints(str(tmp_path / "parts"), network)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(network["b.w"], FLOATS + 1)
    with pytest.warns(UserWarning, match="left as they were: a.w, b.w"):
        mindspore.load_checkpoint(str(tmp_path / "parts" / "b.ckpt"), network, strict_load=True)
    with pytest.raises(TypeError, match="'strict_load' has to be a bool"):
        mindspore.load_checkpoint(str(tmp_path / "parts" / "b.ckpt"), network, strict_load=1)  # type: ignore[arg-type]


# load_segmented_checkpoints


def test_segments_are_joined(tmp_path: Path) -> None:
    ckpt(tmp_path / "parts/a_part1.ckpt", v=FLOATS + 1, step=FLOATS[0])
    ckpt(tmp_path / "parts/a_part0.ckpt", w=FLOATS, step=FLOATS[0])
    (tmp_path / "parts/.a.ckpt").touch()
    (tmp_path / "parts/notes").touch()
    found = mindspore.load_segmented_checkpoints(str(tmp_path / "parts"))
    assert list(found) == ["w", "step", "v"]
    chosen = mindspore.load_segmented_checkpoints(str(tmp_path / "parts"), choice_func=lambda name: name == "v")
    np.testing.assert_array_equal(chosen["v"], FLOATS + 1)


def test_subnetwork_parts_of_mindspore() -> None:
    for rank in (0, 1):
        directory = FIXTURES / "subnetwork_parts" / f"rank_{rank}"
        found = mindspore.load_segmented_checkpoints(str(directory))
        parts = [mindspore.load_checkpoint(str(path)) for path in directory.iterdir()]
        assert found.keys() == {name for part in parts for name in part}


def test_segments_that_cannot_be_joined(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not there, or is not a directory"):
        mindspore.load_segmented_checkpoints(str(tmp_path / "no"))
    with pytest.raises(ValueError, match=r"holds no \.ckpt files"):
        mindspore.load_segmented_checkpoints(str(tmp_path))
    with pytest.raises(TypeError, match="has to be a string, not int"):
        mindspore.load_segmented_checkpoints(5)  # type: ignore[arg-type]
    ckpt(tmp_path / "a.ckpt", w=FLOATS)
    with pytest.raises(ValueError, match="no parameter is left of its files"):
        mindspore.load_segmented_checkpoints(str(tmp_path), specify_prefix="x")
    ckpt(tmp_path / "b.ckpt", w=-FLOATS)
    with pytest.raises(ValueError, match=r"parameter 'w' has different values in .*a\.ckpt and .*b\.ckpt"):
        mindspore.load_segmented_checkpoints(str(tmp_path))


def test_nans_are_the_same(tmp_path: Path) -> None:
    nan = np.array([math.nan], np.float32)
    ckpt(tmp_path / "a.ckpt", w=nan)
    shutil.copy(tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    assert np.isnan(mindspore.load_segmented_checkpoints(str(tmp_path))["w"])
