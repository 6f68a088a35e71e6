import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from reshard import mindspore
from reshard.core.files.numpy_values import INT4
from tests.support.checkpoints import ALL_CASES, Case, read_tree
from tests.support.distributed import BLOCKS, COLUMNS, ROWS, WHOLE, ranks
from tests.support.families import metadata_of
from tests.support.reference import AXIS_LENGTH, DEVICE_COUNTS, RandomLayout, layouts, shard_of
from tests.support.strategy_writer import FileLayout, write_strategy_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK_ID", raising=False)
    (tmp_path / "whole").mkdir()
    save_file({"w": WHOLE}, "whole/part0.safetensors", {"format": "ms"})
    for name, layout in (("rows", ROWS), ("columns", COLUMNS), ("blocks", BLOCKS)):
        write_strategy_file(tmp_path / f"{name}.ckpt", {0: {"w": layout}})
    return tmp_path


def several(**more: np.ndarray) -> None:
    save_file({"v": WHOLE + 100} | more, "whole/part1.safetensors")
    save_file({"step": np.array([7], np.int32)}, "whole/hyper_param.safetensors")
    weights = {"w": "part0.safetensors"} | dict.fromkeys(["v", *more], "part1.safetensors")
    Path("whole/param_name_map.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}))


def distribute(**options: Any) -> dict[int, Any]:
    shutil.rmtree("out", ignore_errors=True)
    arguments = {"format": "safetensors", "unified_safetensors_dir": "whole", "dst_safetensors_dir": "out"} | options
    assert mindspore.load_distributed_checkpoint(None, **arguments) is True
    return read_tree(Path("out"))


def entry(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name.capitalize(), array.shape, array.tobytes()


def test_ranks_get_their_slices() -> None:
    assert distribute(predict_strategy="rows.ckpt") == {
        rank: {"w": entry(half)} for rank, half in enumerate(np.split(WHOLE, 2))
    }
    assert os.listdir("out/rank_0") == ["net.safetensors"]
    assert os.stat("out/rank_0/net.safetensors").st_mode & 0o777 == 0o400
    blocks = [block for half in np.split(WHOLE, 2) for block in np.split(half, 2, 1)]
    assert distribute(predict_strategy="blocks.ckpt", output_format="ckpt", max_process_num=1) == {
        rank: {"w": entry(block)} for rank, block in enumerate(blocks)
    }
    assert distribute(predict_strategy="blocks.ckpt", rank_id=3) == {3: {"w": entry(blocks[3])}}


def test_files_do_not_say_whether_redundancy_was_removed() -> None:
    """As MindSpore's own; where they did, loading with `remove_redundancy` would treat them otherwise."""
    for strategy in ("rows.ckpt", None):
        distribute(predict_strategy=strategy)
        assert metadata_of(Path("out/rank_0/net.safetensors")) == {"format": "ms"}


def test_without_a_strategy_rank_0_has_all() -> None:
    several()
    step = entry(np.array([7], np.int32))
    assert distribute() == {0: {"w": entry(WHOLE), "v": entry(WHOLE + 100), "step": step}}


def test_layouts_for_a_strategy() -> None:
    layouts = mindspore.build_searched_strategy("columns.ckpt")
    assert distribute(predict_strategy=layouts) == distribute(predict_strategy="columns.ckpt")


def test_names_are_mapped() -> None:
    write_strategy_file(Path("s.ckpt"), {0: {"model.w": ROWS}})
    assert distribute(predict_strategy="s.ckpt", name_map={"model.w": "w"}, rank_id=1) == {
        1: {"model.w": entry(WHOLE[2:])}
    }
    several()
    Path("whole/param_name_map.json").write_text('{"model.w": "part0.safetensors"}')
    assert distribute(name_map={"model.w": "w"})[0].keys() == {"model.w", "step"}


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.directory.name)
def test_what_mindspores_conversions_give(case: Case) -> None:
    strategy = str(case.directory / "dst_strategy.ckpt")
    [path] = (case.directory / "full/rank_0").iterdir()
    full = mindspore.load_checkpoint(str(path))
    cut = {re.sub(r"^\d+-", "", name) for name in mindspore.build_searched_strategy(strategy) or ()}
    several()
    parts = {"part0": cut & full.keys(), "hyper_param": full.keys() - cut}
    for name, chosen in parts.items():
        mindspore.save_checkpoint({key: full[key] for key in chosen}, f"whole/{name}", format="safetensors")
    weights = dict.fromkeys(parts["part0"], "part0.safetensors")
    Path("whole/param_name_map.json").write_text(json.dumps({"weight_map": weights}))
    assert distribute(predict_strategy=strategy) == case.want


def test_remote_files() -> None:
    memory = fsspec.filesystem("memory")
    memory.put("whole/part0.safetensors", "/distributed/whole/part0.safetensors")
    memory.put("columns.ckpt", "/distributed/columns.ckpt")
    urls = {"unified_safetensors_dir": "whole", "dst_safetensors_dir": "out", "predict_strategy": "columns.ckpt"}
    options: dict[str, Any] = {name: f"memory://distributed/{path}" for name, path in urls.items()}
    mindspore.load_distributed_checkpoint(None, format="safetensors", **options)
    for rank, half in enumerate(np.split(WHOLE, 2, 1)):
        url = f"memory://distributed/out/rank_{rank}/net.safetensors"
        np.testing.assert_array_equal(mindspore.load_checkpoint(url, format="safetensors")["w"], half)
    memory.rm("/distributed", recursive=True)


def test_what_was_unified_is_distributed() -> None:
    for rank, half in enumerate(np.split(WHOLE, 2)):
        os.makedirs(f"src/rank_{rank}")
        save_file({"w": half, "step": np.array([7], np.int32)}, f"src/rank_{rank}/a.safetensors")
    mindspore.unified_safetensors("src", "rows.ckpt", "unified")
    found = distribute(unified_safetensors_dir="unified", predict_strategy="columns.ckpt")
    assert found == {
        rank: {"w": entry(half), "step": entry(np.array([7], np.int32))}
        for rank, half in enumerate(np.split(WHOLE, 2, 1))
    }


@given(st.data())
def test_slices_are_what_literal_splitting_gives(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("distributed")
    devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    shape = (AXIS_LENGTH,) * data.draw(st.integers(1, 3))
    random: RandomLayout = data.draw(layouts(devices, len(shape)))
    size = random.optimizer_size
    layout = FileLayout(random.device_matrix, random.tensor_map, True, 1 if size else 0, size, shape)
    write_strategy_file(directory / "s.ckpt", {0: {"w": layout}})
    whole = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    (directory / "whole").mkdir()
    save_file({"w": whole}, directory / "whole/a.safetensors")
    rank = data.draw(st.integers(0, devices - 1))
    try:
        expected = shard_of(whole, random, rank)
    except ValueError:  # it does not divide
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK_ID", str(rank))
        found = mindspore.load_distributed_checkpoint(
            {},
            format="safetensors",
            unified_safetensors_dir=str(directory / "whole"),
            predict_strategy=str(directory / "s.ckpt"),
            return_param_dict=True,
        )
    np.testing.assert_array_equal(found["w"], expected)


def test_what_only_one_of_both_has() -> None:
    several(unused=WHOLE)
    layouts = {"w": ROWS, "v": ROWS, "adam_m.w": ROWS, "accu_grads.w": ROWS}
    write_strategy_file(Path("s.ckpt"), {0: layouts})
    with pytest.warns(UserWarning, match="left out") as warned:
        assert distribute(predict_strategy="s.ckpt", rank_id=0)[0].keys() == {"w", "v", "step"}
    assert [str(warning.message).partition(": ")[2] for warning in warned] == [
        "has parameters that the files lack, they are left out: adam_m.w",
        "lacks parameters that the files have, they are left out: unused",
    ]


def test_packed_integers_and_texts_stay_what_they_are() -> None:
    packed = np.arange(8, dtype=np.int8).reshape(4, 2).view(INT4)
    mindspore.save_checkpoint({"w": packed, "note": "héllo"}, "whole/part0", format="safetensors")
    distribute()
    found = mindspore.load_checkpoint("out/rank_0/net.safetensors", format="safetensors")
    assert found["note"] == "héllo"
    assert isinstance(found["w"], np.ndarray)
    assert found["w"].dtype.metadata == INT4.metadata


# networks


def test_a_network_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "1")
    network = {"w": np.zeros((2, 12), np.float32), "other": np.zeros(1, np.float32)}
    arguments: dict[str, Any] = {
        "format": "safetensors",
        "unified_safetensors_dir": "whole",
        "predict_strategy": "rows.ckpt",
    }
    assert mindspore.load_distributed_checkpoint(network, **arguments) == (["other"], [])
    np.testing.assert_array_equal(network["w"], WHOLE[2:])
    found = mindspore.load_distributed_checkpoint({}, return_param_dict=True, **arguments)
    np.testing.assert_array_equal(found["w"], WHOLE[2:])


@pytest.mark.parametrize("kind", ["whole", "ranks"])
def test_a_network_of_the_rank_that_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"w": np.zeros((2, 12), np.float32)}
    kinds: dict[str, dict[str, Any]] = {
        "whole": {"format": "safetensors", "unified_safetensors_dir": "whole", "predict_strategy": "rows.ckpt"},
        "ranks": {
            "checkpoint_filenames": ranks("r", *np.split(WHOLE, 2)),
            "predict_strategy": {"w": ([2], [0, -1], [], 0)},
            "train_strategy_filename": "rows.ckpt",
        },
    }
    arguments = kinds[kind]
    mindspore.load_distributed_checkpoint(network, rank_id=1, **arguments)
    np.testing.assert_array_equal(network["w"], WHOLE[2:])
    with pytest.warns(UserWarning, match="which of 2 ranks this is: rank 0 is assumed") as warned:
        mindspore.load_distributed_checkpoint(network, **arguments)
    assert warned[0].filename == __file__
    np.testing.assert_array_equal(network["w"], WHOLE[:2])
    monkeypatch.setenv("RANK_ID", "0")
    with pytest.raises(ValueError, match="'rank_id' is 1, the environment's RANK_ID is 0: make them equal"):
        mindspore.load_distributed_checkpoint(network, rank_id=1, **arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "npz"}, ValueError, "'format' has to be"),
        ({"output_format": "npz"}, ValueError, "'output_format' has to be"),
        ({"unified_safetensors_dir": None}, ValueError, "'unified_safetensors_dir' is needed"),
        ({"dst_safetensors_dir": None}, ValueError, "'dst_safetensors_dir' is needed"),
        ({"checkpoint_filenames": ["a"]}, ValueError, "'checkpoint_filenames' is for .ckpt files only"),
        ({"train_strategy_filename": "a"}, ValueError, "'train_strategy_filename' is for .ckpt files only"),
        ({"dec_key": b"0" * 16}, ValueError, "'dec_key' is for .ckpt files only"),
        ({"dec_mode": "AES-CBC"}, ValueError, "'dec_mode' is for .ckpt files only"),
        ({"strict_load": True}, ValueError, "'strict_load' is for .ckpt files only"),
        ({"unified_safetensors_dir": "no"}, ValueError, "no: is not there"),
        ({"unified_safetensors_dir": "rows.ckpt"}, ValueError, "rows.ckpt: is not a directory"),
        ({"unified_safetensors_dir": "."}, ValueError, "holds no .safetensors files"),
        ({"dst_safetensors_dir": "rows.ckpt"}, NotADirectoryError, "rows.ckpt"),
        ({"predict_strategy": 5}, TypeError, "'predict_strategy' has to be a string or None"),
        ({"predict_strategy": "no"}, ValueError, "there is no such file"),
        ({"predict_strategy": {"w": 5}}, ValueError, "parameter 'w': <class 'int'> is not a layout"),
        ({"rank_id": "1"}, TypeError, "'rank_id' has to be an int"),
        ({"unified_safetensors_dir": 5}, TypeError, "'unified_safetensors_dir' has to be a string or None, not 5"),
        ({"dst_safetensors_dir": 5}, TypeError, "'dst_safetensors_dir' has to be a string or None, not 5"),
        ({"name_map": 5}, TypeError, "'name_map' has to be a dict of names, not 5"),
        ({"name_map": {"w": 5}}, TypeError, "'name_map' has to be a dict of names, not {'w': 5}"),
        ({"max_process_num": None}, TypeError, "'max_process_num' has to be an int, not None"),
        ({"rank_id": 2}, ValueError, "is for ranks 0 to 1, there is no rank 2"),
        ({"predict_strategy": "other.ckpt"}, ValueError, "has none of the parameters that the files hold"),
        ({"predict_strategy": "odd.ckpt"}, ValueError, r"parameter 'w': its shape .*: axis 0 has 4 elements"),
    ],
)
def test_refused(options: dict[str, Any], error: type[Exception], message: str, here: Path) -> None:
    write_strategy_file(here / "other.ckpt", {0: {"x": ROWS}})
    write_strategy_file(here / "odd.ckpt", {0: {"w": replace(ROWS, device_matrix=(3,))}})
    arguments: dict[str, Any] = {
        "format": "safetensors",
        "unified_safetensors_dir": "whole",
        "dst_safetensors_dir": "out",
        "predict_strategy": "rows.ckpt",
    }
    with pytest.raises(error, match=message):
        mindspore.load_distributed_checkpoint(None, **arguments | options)
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds several .safetensors files, but no param_name_map.json"),
        ("[1]", "is not a map of parameters to files"),
        ("{", "is not a map of parameters to files"),
        ('{"w": 5}', "is not a map of parameters to files"),
        ('{"w": "no.safetensors"}', "has parameter 'w' in 'no.safetensors', which is not there"),
        ('{"x": "part0.safetensors"}', "lacks parameter 'x', which param_name_map.json says is in it"),
    ],
)
def test_maps_that_are_wrong(content: str | None, message: str) -> None:
    several()
    os.remove("whole/param_name_map.json")
    if content is not None:
        Path("whole/param_name_map.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        distribute(predict_strategy="rows.ckpt")
