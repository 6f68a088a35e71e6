import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from reshard import mindspore
from reshard.core.mindspore_api import unifying
from reshard.core.mindspore_api.unifying import split_by_size
from tests.support.checkpoints import CONVERSIONS, read_ckpt, read_safetensors
from tests.support.strategy_writer import FileLayout, write_strategy_file

ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
W = np.arange(8, dtype=np.float32).reshape(4, 2)
STEP = np.array([7], np.int32)

Unify = Callable[..., dict[str, Any]]


def write_ranks(directory: Path, name: str = "net", /, **rows: np.ndarray) -> None:
    """Two ranks; each has half of the rows of each array, and `step`."""
    for rank in range(2):
        path = directory / "src" / f"rank_{rank}" / f"{name.format(rank)}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        halves = {key: np.split(values, 2)[rank] for key, values in rows.items()}
        save_file(halves | {"step": STEP}, path, {"format": "ms"})
    write_strategy_file(directory / "rows.ckpt", {0: dict.fromkeys(rows, ROWS)})


@pytest.fixture
def unify(tmp_path: Path) -> Unify:
    """Unifies `src` into `out`, and returns what that holds."""

    def call(**options: object) -> dict[str, Any]:
        arguments: dict = {"src_dir": str(tmp_path / "src"), "src_strategy_file": str(tmp_path / "rows.ckpt")}
        mindspore.unified_safetensors(**arguments | {"dst_dir": str(tmp_path / "out")} | options)
        return {
            path.name: json.loads(path.read_text()) if path.suffix == ".json" else read_safetensors(path)
            for path in (tmp_path / "out").iterdir()
        }

    return call


def test_whole_tensors_and_where_they_are(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W)
    assert unify() == {
        "part0.safetensors": {"w": ("Float32", (4, 2), W.tobytes())},
        "hyper_param.safetensors": {"step": ("Int32", (1,), STEP.tobytes())},
        "param_name_map.json": {"metadata": {"total_size": 32}, "weight_map": {"w": "part0.safetensors"}},
    }
    with safe_open(tmp_path / "out" / "part0.safetensors", "np") as file:
        assert file.metadata()["format"] == "ms"


def test_a_pipeline_that_mindspore_cut(unify: Unify, tmp_path: Path) -> None:
    case = CONVERSIONS / "case_7010"
    for path in (case / "src").glob("*/*"):
        target = tmp_path / "src" / path.parent.name / "net.safetensors"
        target.parent.mkdir(parents=True)
        contents = read_ckpt(path).items()
        save_file({k: np.frombuffer(b, d.lower()).reshape(s) for k, (d, s, b) in contents}, target)
    found = unify(src_strategy_file=str(case / "src_strategy.ckpt"))
    [full] = (case / "full" / "rank_0").iterdir()
    assert found["part0.safetensors"] | found.get("hyper_param.safetensors", {}) == read_ckpt(full)


def test_large_models_become_several_files(unify: Unify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"w{number}": W + number for number in range(6)} | {
        "large": np.arange(32, dtype=np.float32).reshape(16, 2)
    }
    write_ranks(tmp_path, **tensors)
    monkeypatch.setattr(unifying, "PART_BYTES", 128)
    found = unify()
    assert found["param_name_map.json"]["metadata"]["total_size"] == 320
    weights = {name: found[file] for name, file in found["param_name_map.json"]["weight_map"].items()}
    assert sorted(found) == [
        "hyper_param.safetensors",
        "param_name_map.json",
        *(f"part{n}.safetensors" for n in range(3)),
    ]
    assert found["part0.safetensors"].keys() == {"large"}
    assert {name: file[name][2] for name, file in weights.items()} == {key: v.tobytes() for key, v in tensors.items()}


def test_shares_make_all_of_it_together(unify: Unify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path, **{f"w{number}": W + number for number in range(5)})
    monkeypatch.setattr(unifying, "PART_BYTES", 32)
    assert sorted(unify(split_dst_file=(2, 2))) == ["part3.safetensors", "part4.safetensors"]
    together = unify(split_dst_file=(1, 2))
    assert together == unify()
    assert len(together) == 7


def test_a_function_chooses_and_names(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W, v=W + 10, u=W + 20)
    found = unify(choice_func=lambda name: {"w": "v", "v": False, "u": True}[name])
    assert found["part0.safetensors"] == {
        "v": ("Float32", (4, 2), W.tobytes()),
        "u": ("Float32", (4, 2), (W + 20).tobytes()),
    }
    assert found["hyper_param.safetensors"].keys() == {"step"}
    assert found["param_name_map.json"]["weight_map"].keys() == {"v", "u"}


def test_gradients_are_left_out(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, **{"w": W, "accu_grads.w": W})
    assert set(chain(*(unify()[name] for name in ("part0.safetensors", "hyper_param.safetensors")))) == {"w", "step"}


def test_what_is_outside_the_strategy_on_other_stages_is_kept(unify: Unify, tmp_path: Path) -> None:
    one = FileLayout((1,), ((), ()), False, 0, 0, (4, 2))
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"0-w": one}, 1: {"1-v": one}})
    for rank, name, extra in ((0, "w", "scale"), (1, "v", "step")):
        path = tmp_path / "src" / f"rank_{rank}" / "net.safetensors"
        path.parent.mkdir(parents=True)
        save_file({name: W, extra: STEP}, path)
    assert unify()["hyper_param.safetensors"].keys() == {"scale", "step"}


def test_without_outsiders_there_is_no_file_of_them(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W, step=np.array([[1, 2], [3, 4]], np.int32))
    for rank in range(2):
        save_file({"w": np.split(W, 2)[rank]}, tmp_path / "src" / f"rank_{rank}" / "net.safetensors")
    with pytest.warns(UserWarning, match=r"no source file holds them, though the source's strategy has them: step$"):
        assert sorted(unify()) == ["param_name_map.json", "part0.safetensors"]


def test_the_outsiders_of_a_former_checkpoint_do_not_stay(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W)
    assert "hyper_param.safetensors" in unify()
    for rank in range(2):
        save_file({"w": np.split(W, 2)[rank]}, tmp_path / "src" / f"rank_{rank}" / "net.safetensors")
    assert sorted(unify()) == ["param_name_map.json", "part0.safetensors"]


@pytest.mark.parametrize(
    ("names", "suffix", "chosen"),
    [
        (("net-1_5", "net-2_5"), "-1_5", 0),
        (("net-1_5", "net-11_5"), "1_5", 0),
        (("net_1-3_5", "net_11-3_5"), "1-3_5", 0),
        (("netrank_1-3_5", "net_1-3_5"), "1-3_5", 1),
        (("net_5", "net_25"), "5", 0),
        (("net{}", "other{}"), "", None),
        (("net", "gent"), "t", None),
        (("a-1_5", "b-1_5"), "1_5", None),
    ],
)
def test_the_files_are_chosen_by_their_names_end(
    names: tuple[str, ...], suffix: str, chosen: int | None, unify: Unify, tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        write_ranks(tmp_path, name, w=W + 100 * number)
    if chosen is None:
        with pytest.raises(ValueError, match="rank_0 has . files that 'file_suffix' .* means"):
            unify(file_suffix=suffix)
    else:
        assert unify(file_suffix=suffix)["part0.safetensors"]["w"][2] == (W + 100 * chosen).tobytes()


def test_refused(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W, v=W)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    refused: list[tuple[type[Exception], str, dict]] = [
        (TypeError, "'src_strategy_file' has to be a string, not None", {"src_strategy_file": None}),
        (ValueError, "there is no such file", {"src_strategy_file": str(tmp_path / "no.ckpt")}),
        (TypeError, "'src_dir' has to be a string", {"src_dir": None}),
        (ValueError, "'src_dir' is not a directory", {"src_dir": str(tmp_path / "file")}),
        (ValueError, "it holds no files", {"src_dir": str(tmp_path / "empty")}),
        (TypeError, "'dst_dir' has to be a string", {"dst_dir": 5}),
        (NotADirectoryError, "'dst_dir' is not a directory", {"dst_dir": str(tmp_path / "file")}),
        (ValueError, "'max_process_num' has to be at least 1", {"max_process_num": 0}),
        (ValueError, "'split_dst_file' has to be", {"split_dst_file": (3, 2)}),
        (ValueError, "'split_dst_file' has to be", {"split_dst_file": (1,)}),
        (ValueError, "has to return a bool or a string, not None", {"choice_func": lambda name: None}),
        (ValueError, "no parameter of the strategy is in the files and chosen", {"choice_func": lambda name: False}),
        (ValueError, "the name 'w', which 'v' has", {"choice_func": lambda name: "w"}),
        (ValueError, "the name 'step'", {"choice_func": lambda name: "step"}),
        (ValueError, "file_suffix", {"file_suffix": "9_9"}),
    ]
    for kind, message, options in refused:
        with pytest.raises(kind, match=message):
            unify(**options)
    assert not (tmp_path / "out").exists()


def test_a_rank_is_missing(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W)
    (tmp_path / "src" / "rank_1" / "net.safetensors").unlink()
    with pytest.raises(ValueError, match="missing: rank_1"):
        unify()


def test_a_rank_that_is_not_needed_is_missing(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W)
    four = FileLayout((2, 2), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"w": four}})
    with pytest.warns(UserWarning, match="rank_2, rank_3 are missing, which no target rank needs"):
        assert unify()["part0.safetensors"] == {"w": ("Float32", (4, 2), W.tobytes())}


def test_of_several_files_the_highest_numbers_are_taken(unify: Unify, tmp_path: Path) -> None:
    for step, values in (("9_5", W), ("10_5", W + 10)):
        write_ranks(tmp_path, f"net-{step}", w=values)
    with pytest.warns(UserWarning, match=r"rank_0 has 2 checkpoint files .*; net-10_5\.safetensors is taken"):
        assert unify()["part0.safetensors"] == {"w": ("Float32", (4, 2), (W + 10).tobytes())}


def test_a_stages_own_strategy_is_warned_of(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W)
    write_strategy_file(tmp_path / "rows.ckpt", {1: {"w": ROWS}})
    for rank in range(2):
        (tmp_path / "src" / f"rank_{rank}").rename(tmp_path / "src" / f"rank_{rank + 2}")
    with pytest.warns(UserWarning, match="is pipeline stage 1's own: the result is without the parameters of other st"):
        assert unify()["part0.safetensors"].keys() == {"w"}


def test_equal_slices_are_no_whole_tensors(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=np.concatenate([W, W]))
    with pytest.warns(UserWarning, match="'w' is the same on rank_0, rank_1, which should hold different slices"):
        found = unify()
    assert found["part0.safetensors"] == {"w": ("Float32", (8, 2), np.concatenate([W, W]).tobytes())}


def test_files_of_the_other_kind(unify: Unify, tmp_path: Path) -> None:
    write_ranks(tmp_path, w=W)
    (tmp_path / "src" / "rank_1" / "net.ckpt").touch()
    with pytest.raises(ValueError, match=r"safetensors files only, it holds \.ckpt, \.safetensors files"):
        unify()


@given(st.dictionaries(st.text(), st.integers(0, 2**40), min_size=1), st.integers(1, 8))
def test_groups_hold_each_name_once_and_are_even(sizes: dict[str, int], count: int) -> None:
    groups = split_by_size(sizes, count)
    assert sorted(chain(*groups)) == sorted(sizes)
    totals = [sum(sizes[name] for name in group) for group in groups]
    assert max(totals) - min(totals) <= max(sizes.values())
