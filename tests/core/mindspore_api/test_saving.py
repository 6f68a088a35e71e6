import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from reshard import mindspore
from reshard.core.files.numpy_values import INT4
from tests.support.checkpoints import read_ckpt, read_safetensors

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
KEY = b"0123456789abcdef"
DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?", ml_dtypes.bfloat16]


class Parameter:
    """As frameworks have them: a name, and a way to become an array."""

    def __init__(self, name: str, values: np.ndarray) -> None:
        self.name = name
        self._values = values

    def asnumpy(self) -> np.ndarray:
        return self._values


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "a.ckpt")


def same(found: Any, expected: np.ndarray) -> bool:
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@given(st.data())
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("saving")
    shapes = numpy_st.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4)
    arrays = {
        name: np.frombuffer(
            data.draw(st.binary(min_size=(size := int(np.prod(shape)) * dtype.itemsize), max_size=size)),
            np.uint8 if dtype.kind == "b" else dtype,
        )
        .reshape(shape)
        .astype(dtype)
        for name in data.draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4, unique=True))
        for shape in [data.draw(shapes)]
        for dtype in [np.dtype(data.draw(st.sampled_from(DTYPES)))]
    }
    for format in ("ckpt", "safetensors"):
        path = str(directory / f"a.{format}")
        try:
            mindspore.save_checkpoint(arrays, path, format=format, crc_check=True)
        except ValueError as error:
            assert "use this name for something else" in str(error) or "has no UTF-8" in str(error)
            continue
        found = mindspore.load_checkpoint(path, format=format, crc_check=True)
        assert found.keys() == arrays.keys()
        assert all(same(found[name], array) for name, array in arrays.items())


def test_file_is_what_others_read(tmp_path: Path) -> None:
    values = {"w": FLOATS, "b": np.array(1.5, ml_dtypes.bfloat16), "i": np.array([1], ">i4")}
    mindspore.save_checkpoint(values, str(tmp_path / "a.ckpt"))
    mindspore.save_checkpoint(values, str(tmp_path / "a.safetensors"), format="safetensors")
    expected = {
        "w": ("Float32", (2, 3), FLOATS.tobytes()),
        "b": ("BFloat16", (), b"\xc0\x3f"),
        "i": ("Int32", (1,), b"\1\0\0\0"),
    }
    assert read_ckpt(tmp_path / "a.ckpt") == expected
    assert read_safetensors(tmp_path / "a.safetensors") == expected


def test_kinds_of_things_to_save(target: str) -> None:
    parameters = [Parameter("w", FLOATS), Parameter("v", FLOATS.T)]
    things: list[Any] = [
        {"w": FLOATS, "v": FLOATS.T},
        {"w": parameters[0], "v": parameters[1]},
        [{"name": "w", "data": FLOATS}, {"name": "v", "data": parameters[1]}],
        parameters,
        SimpleNamespace(parameters_and_names=lambda: [("cell.w", parameters[0]), ("v", FLOATS.T)]),
        SimpleNamespace(parameters_dict=lambda: {"w": FLOATS, "v": parameters[1]}),
    ]
    for thing in things:
        mindspore.save_checkpoint(thing, target)
        found = mindspore.load_checkpoint(target)
        assert list(found) == ["w", "v"]
        assert same(found["w"], FLOATS)
        assert same(found["v"], FLOATS.T.copy())


def test_only_the_owner_may_read(target: str, tmp_path: Path) -> None:
    for _ in range(2):  # the second replaces what nobody may write
        mindspore.save_checkpoint({"w": FLOATS}, target)
        assert os.stat(target).st_mode & 0o777 == 0o400
    assert os.listdir(tmp_path) == ["a.ckpt"]


@pytest.mark.parametrize(
    ("name", "format", "file"),
    [
        ("a.ckpt", "ckpt", "a.ckpt"),
        ("a", "ckpt", "a.ckpt"),
        ("a.b", "ckpt", "a.b.ckpt"),
        ("a.ckpt", "safetensors", "a.ckpt.safetensors"),
        ("my_ckpt", "ckpt", "my_ckpt.ckpt"),
    ],
)
def test_names_get_their_ending(tmp_path: Path, name: str, format: str, file: str) -> None:
    mindspore.save_checkpoint({"w": FLOATS}, str(tmp_path / name), format=format)
    assert os.listdir(tmp_path) == [file]


def test_appended(target: str) -> None:
    info = {"n": 3, "x": 0.5, "yes": True, "text": "héllo", "np": np.float64(0.1), "t": FLOATS, "w": np.int16(4)}
    mindspore.save_checkpoint({"w": FLOATS, "v": FLOATS}, target, append_dict=info | {"__exception_save__": True})
    found = mindspore.load_checkpoint(target)
    assert list(found) == ["w", "v", "n", "x", "yes", "text", "np", "t"]
    assert {name: value.dtype.name for name, value in found.items() if isinstance(value, np.ndarray)} == {
        "w": "int16",
        "v": "float32",
        "n": "int64",
        "x": "float32",
        "yes": "bool",
        "np": "float64",
        "t": "float32",
    }
    assert found["text"] == "héllo"


def test_chosen(target: str) -> None:
    mindspore.save_checkpoint({"w": FLOATS, "v": FLOATS}, target, append_dict={"n": 1}, choice_func=lambda n: n == "v")
    assert list(mindspore.load_checkpoint(target)) == ["v", "n"]


@pytest.mark.parametrize(("mode", "key"), [("AES-GCM", KEY), ("AES-CBC", KEY * 2), ("SM4-CBC", KEY)])
def test_encrypted(target: str, mode: str, key: bytes) -> None:
    mindspore.save_checkpoint({"w": FLOATS}, target, enc_key=key, enc_mode=mode)
    assert FLOATS.tobytes() not in Path(target).read_bytes()
    assert same(mindspore.load_checkpoint(target, dec_key=key, dec_mode=mode)["w"], FLOATS)


def test_what_was_loaded_is_saved_as_it_was(tmp_path: Path) -> None:
    table = [np.array([1, 2], np.int32), FLOATS, np.array([0, 1], np.int32)]
    packed = np.arange(4, dtype=np.int8).view(INT4)
    paths = [str(tmp_path / f"{number}.ckpt") for number in range(2)]
    mindspore.save_checkpoint({"packed": packed, "table": table, "text": "héllo", "s": np.array(3)}, paths[0])
    mindspore.save_checkpoint(mindspore.load_checkpoint(paths[0]), paths[1])
    first, second = (Path(path).read_bytes() for path in paths)
    assert first == second
    assert b"Int4" in first


def test_texts_in_safetensors(tmp_path: Path) -> None:
    path = str(tmp_path / "a.safetensors")
    mindspore.save_checkpoint({"w": FLOATS, "note": "héllo"}, path, format="safetensors")
    assert mindspore.load_checkpoint(path, format="safetensors")["note"] == "héllo"


@pytest.mark.parametrize(("removed", "shown"), [(None, False), (True, True), (False, True)])
def test_the_mark_of_removed_redundancy(tmp_path: Path, removed: bool | None, shown: bool) -> None:
    path = tmp_path / "a.safetensors"
    mindspore.save_checkpoint({"w": FLOATS}, str(path), format="safetensors", remove_redundancy=removed)
    assert (f'"remove_redundancy":"{removed}"'.encode() in path.read_bytes()) is shown
    assert (b"remove_redundancy" in path.read_bytes()) is shown


def test_remote_files() -> None:
    for format in ("ckpt", "safetensors"):
        url = f"memory://saving/a.{format}"
        for crc_check in (False, True):
            mindspore.save_checkpoint({"w": FLOATS}, url, format=format, crc_check=crc_check)
            found = mindspore.load_checkpoint(url, format=format, crc_check=crc_check)
            assert same(found["w"], FLOATS)
    fsspec.filesystem("memory").rm("/saving", recursive=True)


def test_arrays_without_elements(target: str) -> None:
    empty = {"rows": np.zeros((0, 3), np.float32), "none": np.zeros(0, np.float32)}
    with pytest.warns(UserWarning, match=r"a\.ckpt: left out, since they have no elements: none") as warned:
        mindspore.save_checkpoint({"w": FLOATS} | empty, target)
    assert warned[0].filename == __file__
    found = mindspore.load_checkpoint(target)
    assert same(found["rows"], empty["rows"])
    assert found.keys() == {"w", "rows"}


def test_two_parameters_of_one_name(target: str) -> None:
    first, same_one, other = (Parameter("w", array) for array in (FLOATS, FLOATS.copy(), FLOATS + 1))
    mindspore.save_checkpoint([first, first, same_one], target, append_dict={"n": 1})
    assert mindspore.load_checkpoint(target).keys() == {"w", "n"}
    with pytest.raises(ValueError, match="two parameters that differ are named 'w'"):
        mindspore.save_checkpoint([first, other], target)
    mindspore.save_checkpoint(mindspore.load_checkpoint(target), target, append_dict={"n": 2})
    assert mindspore.load_checkpoint(target)["n"] == np.array(2)


def test_a_failure_leaves_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    mindspore.save_checkpoint({"w": FLOATS}, str(path), format="safetensors")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="parameter 'format'"):
        mindspore.save_checkpoint({"format": FLOATS}, str(path), format="safetensors")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"save_obj": 5}, TypeError, "'save_obj' has to be a network, a list or a dict, not <class 'int'>"),
        ({"save_obj": {5: FLOATS}}, TypeError, "strings for keys, not <class 'int'>"),
        ({"save_obj": {"w": 5}}, TypeError, "parameter 'w': <class 'int'> is neither an array"),
        ({"save_obj": {"w": FLOATS.astype(complex)}}, TypeError, "numpy's dtype complex128"),
        ({"save_obj": {"w": [FLOATS]}}, TypeError, "parameter 'w': <class 'list'> is neither an array"),
        ({"save_obj": [FLOATS]}, TypeError, "parameters with a name"),
        ({"save_obj": [{"name": "w"}]}, TypeError, "dicts with 'name' and 'data', not with"),
        ({"save_obj": [{"name": 5, "data": FLOATS}]}, TypeError, "parameters with a name"),
        ({"save_obj": [{"name": "w", "data": 5}]}, TypeError, "the 'data' of 'w' has to be an array"),
        ({"save_obj": {}}, ValueError, "there is nothing to save"),
        ({"ckpt_file_name": 5}, TypeError, "has to be a string"),
        ({"ckpt_file_name": "."}, IsADirectoryError, "is a directory, name a file"),
        ({"ckpt_file_name": "no/a.ckpt"}, FileNotFoundError, "no: is not there, or is not a directory: make it first"),
        ({"integrated_save": 1}, TypeError, "'integrated_save' has to be a bool"),
        ({"async_save": 1}, TypeError, "'async_save' has to be a bool or a string"),
        ({"async_save": "later"}, ValueError, "not 'later'"),
        ({"append_dict": [1]}, TypeError, "'append_dict' has to be a dict"),
        ({"append_dict": {5: 1}}, TypeError, "strings for keys"),
        ({"append_dict": {"n": 2**63}}, ValueError, "has 9223372036854775808 as 'n': numbers are saved in 64 bits"),
        ({"append_dict": {"x": [1]}}, TypeError, "not <class 'list'> as 'x'"),
        ({"enc_key": "secret"}, ValueError, "'enc_key' has to be None or bytes, not str"),
        ({"enc_key": b"short"}, ValueError, "enc_key: the key has 5 bytes"),
        ({"enc_key": KEY, "enc_mode": "ROT13"}, ValueError, "'ROT13' goes with 'enc_key'"),
        ({"enc_mode": 5}, ValueError, "'enc_mode' has to be str"),
        ({"enc_key": KEY, "crc_check": True}, ValueError, "'enc_key' or 'crc_check', not both"),
        ({"crc_check": 1}, ValueError, "'crc_check' has to be bool"),
        ({"remove_redundancy": 1}, ValueError, "'remove_redundancy' has to be None or bool"),
        ({"format": "npz"}, ValueError, "'format' has to be"),
        ({"format": "safetensors", "enc_key": KEY}, ValueError, "never encrypted"),
        ({"format": "safetensors", "incremental": True}, ValueError, "'incremental' is for .ckpt files only"),
        ({"format": "safetensors", "save_obj": {"t": [FLOATS] * 3}}, ValueError, "which .safetensors cannot hold"),
        ({"compress": True}, TypeError, "unexpected keyword argument 'compress'"),
    ],
)
def test_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        mindspore.save_checkpoint(**({"save_obj": {"w": FLOATS}, "ckpt_file_name": "a"} | arguments))
    assert not os.listdir(tmp_path)


def test_ways_that_mean_nothing_here(target: str) -> None:
    for way in (True, "process", "thread"):
        mindspore.save_checkpoint({"w": FLOATS}, target, integrated_save=False, async_save=way, global_step_num=5)
        assert same(mindspore.load_checkpoint(target)["w"], FLOATS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_nothing_may_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        mindspore.save_checkpoint({"w": FLOATS}, str(tmp_path / "a.ckpt"))
