"""Files that only their owner may read, in directories that only their owner may enter, as MindSpore makes them."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from reshard import mindspore
from tests.support.checkpoints import case

ALONE = {"directory": 0o700, "file": 0o400}
USUAL = {"directory": 0o755, "file": 0o644}
PAIR = case(7017)
STRATEGIES = (str(PAIR.directory / "src_strategy.ckpt"), str(PAIR.directory / "dst_strategy.ckpt"))


@pytest.fixture(autouse=True)
def _usual_mask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    found = [root, *sorted(root.rglob("*"))]
    return {str(path.relative_to(root.parent)): stat.S_IMODE(path.stat().st_mode) for path in found}


def test_a_transformed_checkpoint(tmp_path: Path) -> None:
    mindspore.transform_checkpoints(str(PAIR.directory / "src"), str(tmp_path / "a" / "out"), "net_", *STRATEGIES)
    assert modes(tmp_path / "a") == {
        "a": USUAL["directory"],
        "a/out": ALONE["directory"],
        "a/out/rank_0": ALONE["directory"],
        "a/out/rank_0/net_0.ckpt": ALONE["file"],
        "a/out/rank_1": ALONE["directory"],
        "a/out/rank_1/net_1.ckpt": ALONE["file"],
    }


def test_one_ranks_file(tmp_path: Path) -> None:
    needed = mindspore.rank_list_for_transform(0, *STRATEGIES)
    files = {rank: str(next((PAIR.directory / "src" / f"rank_{rank}").iterdir())) for rank in needed}
    mindspore.transform_checkpoint_by_rank(0, files, str(tmp_path / "net.ckpt"), *STRATEGIES)
    assert modes(tmp_path / "net.ckpt") == {"net.ckpt": ALONE["file"]}


@pytest.mark.parametrize("output_format", ["ckpt", "safetensors"])
def test_whole_tensors_and_slices_of_them(tmp_path: Path, output_format: str) -> None:
    mindspore.transform_checkpoints(
        str(PAIR.directory / "src"), str(tmp_path / "ranks"), "net_", *STRATEGIES, output_format="safetensors"
    )
    whole = tmp_path / "whole"
    mindspore.unified_safetensors(str(tmp_path / "ranks"), STRATEGIES[1], str(whole))
    mindspore.load_distributed_checkpoint(
        None,
        predict_strategy=STRATEGIES[1],
        format="safetensors",
        unified_safetensors_dir=str(whole),
        dst_safetensors_dir=str(tmp_path / "slices"),
        rank_id=1,
        output_format=output_format,
    )
    assert modes(whole) == {
        "whole": ALONE["directory"],
        "whole/hyper_param.safetensors": ALONE["file"],
        "whole/param_name_map.json": USUAL["file"],
        "whole/part0.safetensors": ALONE["file"],
    }
    assert modes(tmp_path / "slices") == {
        "slices": USUAL["directory"],
        "slices/rank_1": ALONE["directory"],
        f"slices/rank_1/net.{output_format}": ALONE["file"],
    }


def test_what_training_saves(tmp_path: Path) -> None:
    checkpoint = mindspore.ModelCheckpoint("net", str(tmp_path / "job" / "rank_0"))
    state = mindspore.RunContext(train_network={"w": np.zeros(2)}, cur_epoch_num=1, cur_step_num=1, batch_num=1)
    checkpoint.step_end(state)
    assert modes(tmp_path / "job") == {
        "job": USUAL["directory"],
        "job/rank_0": ALONE["directory"],
        "job/rank_0/net-1_1.ckpt": ALONE["file"],
    }
