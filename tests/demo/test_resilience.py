"""The whole cycle: ranks save, some are killed, what is left is recovered, converted, and goes on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demo.resilience import AFTER, BEFORE
from demo.training import replica_groups
from reshard.mindspore import load_checkpoint
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT


def steps_on(rank: Path) -> list[str]:
    return sorted(path.name for path in rank.iterdir())


@pytest.mark.slow
def test_the_model_is_that_of_a_training_that_nothing_disturbed(tmp_path: Path) -> None:
    directory = tmp_path / "cycle"
    done = subprocess.run(
        [sys.executable, "-m", "demo.resilience", str(directory)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1: SIGKILL, 2: SIGTERM" in done.stdout
    assert done.stdout.count("the same model: 8 parameters") == 2
    # one healthy rank of each group saved the step before the fault; the killed ones have regular saves only
    for group in replica_groups(BEFORE):
        saved = [rank for rank in group if (directory / f"training/rank_{rank}/net-2_7.ckpt").exists()]
        assert len(saved) == 1
        assert saved[0] not in (1, 6)
    assert steps_on(directory / "training/rank_1") == ["net-1_10.ckpt", "net-1_20.ckpt"]
    # the training went on from there, not from a regular save, and changed the weights
    for rank in AFTER.ranks:
        for resumed in ("resumed", "resumed_iteration"):
            assert steps_on(directory / resumed / f"rank_{rank}") == ["net-2_18.ckpt", "net-2_20.ckpt"]
        assert (directory / f"iterations/iteration_00000027/model-{rank:07}-0000006.safetensors").exists()
    states = [load_checkpoint(str(directory / f"resumed/rank_0/net-2_{step}.ckpt")) for step in (18, 20)]
    assert not any(np.array_equal(states[0][name], states[1][name]) for name in states[0] if name.endswith("weight"))


def test_ranks_that_hold_the_same() -> None:
    assert replica_groups(BEFORE) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert replica_groups(AFTER) == [[rank] for rank in range(6)]
