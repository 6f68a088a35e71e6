"""From a training with DeepSpeed to a Hugging Face directory, by the command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.deepspeed_files import deepspeed_case, made

CASE = deepspeed_case("case_zero2_two_groups_tied_frozen")


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A checkpoint of Hugging Face's Trainer."""
    root = CASE.copied(tmp_path / "checkpoint-2").root
    (root / "config.json").write_text(json.dumps({"model_type": "qwen3", "torch_dtype": "bfloat16"}))
    (root / "trainer_state.json").write_text("{}")
    return root


def test_a_training_becomes_a_hugging_face_directory(
    training: Path, tmp_path: Path, reshard: Callable[..., Any]
) -> None:
    done = reshard("convert", training, tmp_path / "out", "--layout", "unified", "--select", "weights-only")
    assert done.code == 0, done.err
    assert made(tmp_path / "out") == {name: each for name, each in CASE.want.items() if not name.startswith("exp_avg")}
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "float32"
    assert reshard("diff", training, tmp_path / "out", "--select", "weights-only").code == 0


def test_doctor_needs_nothing(training: Path, reshard: Callable[..., Any]) -> None:
    done = reshard("doctor", training)
    assert done.code == 0
    assert "DeepSpeed checkpoint, 4 files, 59 parameters" in done.out
    assert "the shapes in its files say how tensors are partitioned, and lengths and paddings agree" in (
        " ".join(done.out.split())
    )


def test_inspect_shows_the_stage(training: Path, reshard: Callable[..., Any]) -> None:
    assert reshard("inspect", training, "--json").json["zero_stage"] == 2
    lines = [line.split() for line in reshard("inspect", training).out.splitlines()]
    assert ["tag", "global_step2"] in lines
    assert ["ZeRO", "stage", "2,", "3", "ranks"] in lines
    assert ["optimizer", "by", "names"] in lines
    assert ["mp_rank_00_model_states.pt", "1"] in lines
    assert ["lm_head.weight", "Float32", "[37,", "16]", "1", "[37,", "16]"] in lines


def test_a_missing_rank_is_named(training: Path, tmp_path: Path, reshard: Callable[..., Any]) -> None:
    (training / "global_step2" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    done = reshard("convert", training, tmp_path / "out", "--layout", "unified")
    assert done.code == 2
    assert "global_step2: the files optim_states.pt of ranks 1 are missing: restore them" in done.err
