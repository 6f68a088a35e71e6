"""The steps of MindSpore's tutorial on converting distributed checkpoints, with the imports replaced.

From 8 ranks in two pipeline stages to 2 ranks: as a whole, rank by rank and stage by stage in processes of their own,
and by way of whole tensors in `.safetensors` files.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from reshard import mindspore
from tests.support.checkpoints import case, read_ckpt, read_tree
from tests.support.places import FIXTURES, PROJECT

PAIR = case(7010)

BEGINNING = """
import os
import reshard.mindspore as ms
from reshard.mindspore import train
from reshard.mindspore.communication import get_group_size, get_rank, init
"""

TRAINING = """
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL)
ms.set_auto_parallel_context(pipeline_stages=2, enable_parallel_optimizer=True)
init()
ms.set_auto_parallel_context(strategy_ckpt_config={"save_file": f"./strategy_{get_rank()}.ckpt"})
ms.set_seed(1)
config = train.CheckpointConfig(save_checkpoint_steps=1000, keep_checkpoint_max=1, integrated_save=False)
callback = train.ModelCheckpoint(prefix="checkpoint", directory=f"./trained/rank_{get_rank()}", config=config)
print(get_rank(), get_group_size(), ms.get_auto_parallel_context("parallel_mode"))
"""

WHOLE = """
ms.merge_pipeline_strategys("src_strategies", "src_strategy.ckpt")
ms.transform_checkpoints("src", "out", "checkpoint_", "src_strategy.ckpt", "dst_strategy.ckpt")
"""

ONE_RANK = """
rank = get_rank()
needed = ms.rank_list_for_transform(rank, "src_strategy.ckpt", "dst_strategy.ckpt")
files = {each: os.path.join("src", f"rank_{each}", f"checkpoint_{each}.ckpt") for each in needed}
path = os.path.join("out", f"rank_{rank}", f"checkpoint_{rank}.ckpt")
ms.transform_checkpoint_by_rank(rank, files, path, "src_strategy.ckpt", "dst_strategy.ckpt")
"""

STAGE_BY_STAGE = """
import multiprocessing

def transform(strategy):
    ms.set_context(device_target="CPU")
    ms.transform_checkpoints("src", "parts", "checkpoint_", strategy, "dst_strategy.ckpt")

def merge(rank):
    os.makedirs(f"out/rank_{rank}")
    parameters = ms.load_segmented_checkpoints(f"parts/rank_{rank}")
    ms.save_checkpoint(parameters, f"out/rank_{rank}/checkpoint_{rank}.ckpt")

if __name__ == "__main__":
    with multiprocessing.Pool(processes=2) as pool:
        pool.map(transform, ["src_strategies/strategy_0.ckpt", "src_strategies/strategy_4.ckpt"])
        pool.map(merge, range(2))
"""

BY_WHOLE_TENSORS = """
ms.ckpt_to_safetensors("src", "safetensors")
ms.transform_checkpoints(
    "safetensors", "direct", "checkpoint_", "src_strategy.ckpt", "dst_strategy.ckpt", process_num=8,
    output_format="safetensors",
)
ms.unified_safetensors("safetensors", "src_strategy.ckpt", "unified")
ms.load_distributed_checkpoint(
    network=None, predict_strategy="dst_strategy.ckpt", format="safetensors", unified_safetensors_dir="unified",
    dst_safetensors_dir="sliced",
)
"""

LOADING = """
import numpy as np
parameters = ms.load_checkpoint(os.path.join("out", f"rank_{get_rank()}", f"checkpoint_{get_rank()}.ckpt"))
network = {name: np.zeros_like(value) for name, value in parameters.items() if isinstance(value, np.ndarray)}
not_loaded, _ = ms.load_param_into_net(network, parameters)
assert not not_loaded
assert any(array.any() for array in network.values())
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of the job: `src`, the ranks' strategies, and both merged ones."""
    for rank in range(8):
        [file] = (PAIR.directory / "src" / f"rank_{rank}").iterdir()
        folder = tmp_path / "src" / f"rank_{rank}"
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / f"checkpoint_{rank}.ckpt")
    shutil.copytree(PAIR.directory / "src_stages", tmp_path / "src_strategies")
    for name in ("src_strategy.ckpt", "dst_strategy.ckpt"):
        shutil.copyfile(PAIR.directory / name, tmp_path / name)
    return tmp_path


def start(here: Path, *steps: str, **environment: str) -> subprocess.Popen[str]:
    (here / "program.py").write_text(BEGINNING + "".join(steps))
    return subprocess.Popen(
        [sys.executable, "-W", "error", "program.py"],
        cwd=here,
        env={"PYTHONPATH": str(PROJECT), "PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    shown, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return shown


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Carries out steps in this process."""
    monkeypatch.chdir(here)
    for name in ("RANK_ID", "RANK_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def carried_out(*steps: str, **environment: str) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        exec("".join([BEGINNING, *steps]), {})

    yield carried_out
    mindspore.reset_auto_parallel_context()


def test_a_training_script_begins(here: Path, run: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    run(TRAINING, RANK_ID="3", RANK_SIZE="8")
    assert capsys.readouterr().out == "3 8 semi_auto_parallel\n"
    assert os.listdir(here / "trained") == ["rank_3"]


def test_the_whole_checkpoint(here: Path, run: Callable[..., None]) -> None:
    (here / "src_strategy.ckpt").unlink()
    run(WHOLE, LOADING)
    assert read_tree(here / "out") == PAIR.want


@pytest.mark.slow
def test_each_rank_in_a_process_of_its_own(here: Path) -> None:
    ranks = [
        start(here, ONE_RANK, LOADING, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2") for rank in range(2)
    ]
    for process in ranks:
        output_of(process)
    assert read_tree(here / "out") == PAIR.want


@pytest.mark.slow
def test_each_stage_in_a_process_of_its_own(here: Path) -> None:
    output_of(start(here, STAGE_BY_STAGE))
    parts = FIXTURES / "subnetwork_parts"
    assert {path.relative_to(here / "parts"): read_ckpt(path) for path in (here / "parts").glob("*/*")} == {
        path.relative_to(parts): read_ckpt(path) for path in parts.glob("*/*")
    }
    assert read_tree(here / "out") == PAIR.want


def test_by_way_of_whole_tensors(here: Path, run: Callable[..., None]) -> None:
    run(BY_WHOLE_TENSORS)
    for rank, want in PAIR.want.items():
        direct = mindspore.load_checkpoint(
            str(here / "direct" / f"rank_{rank}" / f"checkpoint_{rank}.safetensors"), format="safetensors"
        )
        assert set(direct) == set(want)
        sliced = mindspore.load_checkpoint(
            str(here / "sliced" / f"rank_{rank}" / "net.safetensors"), format="safetensors"
        )
        for values in (direct, sliced):
            for name, value in values.items():
                assert np.asarray(value).tobytes() == want[name][2], name
