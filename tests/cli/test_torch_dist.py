"""Megatron-Core's `torch_dist` by the command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.checkpoints import read_safetensors
from tests.support.megatron import ITERATION, megatron_case

DENSE = megatron_case("dist_tp2_pp2_optimizer")


def test_there_and_back(reshard: Callable[..., Any], tmp_path: Path) -> None:
    planned = reshard("plan", DENSE.source, tmp_path / "out", "--layout", "torch_dist", "--shards", "2").out
    assert "8 files -> 2 files" in planned
    assert not (tmp_path / "out").exists()
    reshard("convert", DENSE.source, tmp_path / "out", "--layout", "torch_dist", "--shards", "2")
    assert "the same model: 140 parameters" in reshard("diff", DENSE.source, tmp_path / "out").out
    reshard("doctor", tmp_path / "out")
    reshard("verify", tmp_path / "out")
    reshard("convert", tmp_path / "out" / ITERATION, tmp_path / "back", "--layout", "unified")
    assert read_safetensors(tmp_path / "back/model.safetensors") == DENSE.want


def test_iterations_as_they_come(reshard: Callable[..., Any], tmp_path: Path) -> None:
    reshard("convert-latest", DENSE.source, tmp_path / "out", "--layout", "torch_dist")
    assert (tmp_path / "out/latest_checkpointed_iteration.txt").read_text() == "3"
