"""The programs of docs/guides/mindspore.md are run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from demo.make_checkpoint import make_demo
from reshard import mindspore as mindspore_api
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import read_ckpt, read_rank
from tests.support.places import PROJECT

PAGE = (PROJECT / "docs" / "guides" / "mindspore.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user is."""
    here = tmp_path_factory.mktemp("user")
    make_demo(parse_url(str(here / "demo-out")))
    return here


def ran(directory: Path, program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::UserWarning", "-c", program],
        cwd=directory,
        env={"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_examples(directory: Path) -> None:
    assert len(PROGRAMS) == 4
    assert "bfloat16" in ran(directory, PROGRAMS[0])
    assert re.fullmatch(r"(\d \[\d(, \d)*\]\n){4}", ran(directory, PROGRAMS[1]))
    for rank in range(4):
        whole_conversion = read_rank(directory / "demo-out" / "transformed", rank)
        assert read_ckpt(directory / "demo-out" / "by_rank" / f"{rank}.ckpt") == whole_conversion


def test_the_training_that_saves(directory: Path) -> None:
    assert ran(directory, PROGRAMS[2]).endswith("demo-out/training/rank_0/llama-1_500.ckpt\n")
    saved = directory / "demo-out" / "training" / "rank_0"
    assert sorted(path.name for path in saved.iterdir()) == ["llama-1_400.ckpt", "llama-1_500.ckpt"]


STEP = """
import numpy as np
from reshard.mindspore import RunContext
names = [f"adam_m.model.layers.0.attention.{each}.weight" for each in ("wk", "wo")]
weights = {name: np.ones(2, np.float32) for name in names}
checkpoint.end(RunContext(train_network=weights, cur_epoch_num=1, cur_step_num=1, batch_num=1))
print(checkpoint.latest_ckpt_file_name)
"""


def test_the_training_without_redundancy(directory: Path) -> None:
    saved = ran(directory, PROGRAMS[3] + STEP).strip()
    assert set(read_ckpt(Path(saved))) == {"adam_m.model.layers.0.attention.wo.weight"}


def test_every_function_is_told_of() -> None:
    for name in mindspore_api.__all__:
        assert f"`{name}`" in PAGE
