import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from reshard import mindspore
from reshard.core.files import ckpt_writing
from tests.support.checkpoints import ckpt, read_ckpt, read_safetensors
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.format_cases import FORMATS, KEYS, check_appended, check_parameters

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    for folder in ("rank_0", "rank_1"):
        for name in ("a-1_1", "b"):
            ckpt(tmp_path / "in" / folder / f"{name}.ckpt", w=FLOATS)
    ckpt(tmp_path / "in/other/a.ckpt", w=FLOATS)
    (tmp_path / "in/rank_0/notes").touch()
    return tmp_path / "in"


def files(directory: Path, ending: str) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob(f"*.{ending}")}


def test_there_and_back(tmp_path: Path) -> None:
    mindspore.ckpt_to_safetensors(str(FORMATS / "plain.ckpt"), str(tmp_path))
    path = tmp_path / "plain.safetensors"
    assert path.stat().st_mode & 0o777 == 0o400
    assert b"remove_redundancy" not in path.read_bytes()  # nobody knows it
    found = mindspore.load_checkpoint(str(path), format="safetensors")
    check_parameters(found)
    check_appended(found)
    mindspore.safetensors_to_ckpt(str(path))
    found = mindspore.load_checkpoint(str(tmp_path / "plain.ckpt"))
    check_parameters(found)
    check_appended(found)
    assert list(found) == sorted(found)


def test_others_read_it(tmp_path: Path) -> None:
    mindspore.safetensors_to_ckpt(str(FORMATS / "plain.safetensors"), str(tmp_path))
    assert read_ckpt(tmp_path / "plain.ckpt") == read_safetensors(FORMATS / "plain.safetensors")


def test_parameters_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(10, dtype=np.int32)
    pieces = [("w", "Int32", (10,), piece) for piece in (values[:3].tobytes(), values[3:].tobytes()[:7])]
    last = ("w", "Int32", (10,), values.tobytes()[19:])
    (tmp_path / "a.ckpt").write_bytes(checkpoint_bytes(*pieces, last))
    mindspore.ckpt_to_safetensors(str(tmp_path / "a.ckpt"))
    assert read_safetensors(tmp_path / "a.safetensors") == {"w": ("Int32", (10,), values.tobytes())}
    monkeypatch.setattr(ckpt_writing, "MAX_PIECE_BYTES", 16)
    mindspore.safetensors_to_ckpt(str(tmp_path / "a.safetensors"), str(tmp_path / "back"))
    assert (tmp_path / "back/a.ckpt").read_bytes().count(b"Int32") == 3
    assert read_ckpt(tmp_path / "back/a.ckpt") == {"w": ("Int32", (10,), values.tobytes())}


def test_a_directory(ranks: Path) -> None:
    mindspore.ckpt_to_safetensors(str(ranks), processes_num=3)
    assert files(ranks, "safetensors") == {
        f"rank_{rank}/{name}.safetensors" for rank in (0, 1) for name in ("a-1_1", "b")
    }


def test_a_directory_into_another(ranks: Path, tmp_path: Path) -> None:
    mindspore.ckpt_to_safetensors(str(ranks), str(tmp_path / "out"), file_name_regex=r"-\d")
    assert files(tmp_path / "out", "safetensors") == {"rank_0/a-1_1.safetensors", "rank_1/a-1_1.safetensors"}
    assert not files(ranks, "safetensors")


def test_renamed(tmp_path: Path) -> None:
    path = ckpt(tmp_path / "a.ckpt", w=FLOATS, v=FLOATS + 1)
    mindspore.ckpt_to_safetensors(path, name_map={"w": "v", "v": "w", "nobody": "x"})
    found = mindspore.load_checkpoint(str(tmp_path / "a.safetensors"), format="safetensors")
    assert found.keys() == {"v", "w"}
    np.testing.assert_array_equal(found["v"], FLOATS)


def test_remote_files() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/formats/rank_0/plain.ckpt", (FORMATS / "plain.ckpt").read_bytes())
    mindspore.ckpt_to_safetensors("memory://formats")
    found = mindspore.load_checkpoint("memory://formats/rank_0/plain.safetensors", format="safetensors")
    check_parameters(found)
    memory.rm("/formats", recursive=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"file_path": "no.ckpt"}, "no.ckpt: is not there"),
        ({"file_path": 5}, "'file_path' has to be a string"),
        ({"file_path": "a.safetensors"}, "is not a .ckpt file"),
        ({"save_path": "out.x"}, "'out.x' has a file's ending"),
        ({"name_map": 5}, "'name_map' has to be a dict"),
        ({"name_map": {"w": 5}}, "'name_map' has 5 for 'w', which is not a name"),
        ({"name_map": {"w": ""}}, "'name_map' has '' for 'w', which is not a name"),
        ({"save_path": 5}, "'save_path' has to be a string or None"),
        ({"file_name_regex": "x"}, "'file_name_regex' 'x' is not found in it"),
        ({"file_name_regex": "["}, "'file_name_regex' '\\[' is not a regular expression: unterminated character set"),
        ({"file_name_regex": 5}, "'file_name_regex' 5 is not a regular expression"),
        ({"processes_num": 0}, "'processes_num' has to be an int of at least 1, not 0"),
        ({"processes_num": "2"}, "'processes_num' has to be an int of at least 1, not '2'"),
        ({"file_path": "."}, "no directories whose names begin with 'rank'"),
        ({"file_path": "in", "file_name_regex": "x"}, "'x' is found in no .ckpt file's name"),
        ({"name_map": {"w": "v"}}, r"a\.ckpt: parameter 'v' is given twice for one file"),
        ({"file_path": "map.ckpt"}, r"map\.ckpt: parameter 'm' is a MapTensor, which .safetensors cannot hold"),
    ],
)
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    ckpt(tmp_path / "a.ckpt", w=FLOATS, v=FLOATS)
    (tmp_path / "a.safetensors").touch()
    if arguments["file_path"] == "in" if "file_path" in arguments else False:
        (tmp_path / "in/rank_0").mkdir(parents=True)
    mindspore.save_checkpoint({"m": [FLOATS, FLOATS, FLOATS]}, "map.ckpt")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ValueError, match=message):
        mindspore.ckpt_to_safetensors(**({"file_path": "a.ckpt"} | arguments))
    assert sorted(os.listdir(tmp_path)) == before


def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    for mode in KEYS:
        with pytest.raises(
            ValueError, match="is encrypted, and this function takes no key: load it by load_checkpoint"
        ):
            mindspore.ckpt_to_safetensors(str(FORMATS / f"encrypted_{mode}.ckpt"), str(tmp_path))
    assert not os.listdir(tmp_path)


def test_a_crc_is_checked_before_it_is_lost(tmp_path: Path) -> None:
    content = (FORMATS / "crc.ckpt").read_bytes()
    (tmp_path / "a.ckpt").write_bytes(content)
    mindspore.ckpt_to_safetensors(str(tmp_path / "a.ckpt"), str(tmp_path / "out"))
    assert b"crc_num" not in (tmp_path / "out/a.safetensors").read_bytes()
    (tmp_path / "a.ckpt").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"a\.ckpt: wrong CRC-32"):
        mindspore.ckpt_to_safetensors(str(tmp_path / "a.ckpt"))


def test_one_bad_file_of_several(ranks: Path) -> None:
    (ranks / "rank_0/b.ckpt").write_bytes(b"garbage")
    with pytest.raises(ValueError, match=r"rank_0/b\.ckpt"):
        mindspore.ckpt_to_safetensors(str(ranks))
    assert len(files(ranks, "safetensors")) == 3
