"""From a training with FSDP to a Hugging Face directory, by the command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import read_safetensors
from tests.support.fsdp import fsdp_case

CASE = fsdp_case("fsdp2_mixed_tied")


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A training with one step, of which the tracker knows."""
    shutil.copytree(CASE.root, tmp_path / "run/global_step_40/actor")
    (tmp_path / "run/latest_checkpointed_iteration.txt").write_text("40")
    return tmp_path / "run"


def test_a_training_becomes_a_hugging_face_directory(
    training: Path, tmp_path: Path, reshard: Callable[..., Any]
) -> None:
    done = reshard("convert", training, tmp_path / "out", "--layout", "unified", "--select", "weights-only")
    assert done.code == 0, done.err
    want = {name: each for name, each in CASE.want.items() if not name.startswith("exp_avg")}
    assert read_safetensors(tmp_path / "out/model.safetensors") == want
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"
    assert reshard("diff", training / "global_step_40", tmp_path / "out", "--select", "weights-only").code == 0


def test_doctor_needs_nothing(training: Path, reshard: Callable[..., Any]) -> None:
    done = reshard("doctor", training)
    assert done.code == 0
    assert "FSDP checkpoint, 6 files, 40 parameters" in done.out
    assert "no strategy: its tensors say how they are sharded, and their shapes agree" in done.out


def test_a_plan_names_what_is_copied(training: Path, reshard: Callable[..., Any]) -> None:
    done = reshard("plan", training, "--layout", "unified", "--select", "weights-only")
    assert f"like {training}/global_step_40/actor/huggingface: config.json copied, dtype bfloat16" in (
        " ".join(done.out.split())
    )


def test_files_are_counted_as_files(training: Path, reshard: Callable[..., Any]) -> None:
    """Symptom: a training of 3 ranks, which save 6 files, was said to have 6 ranks."""
    assert "6 files -> 1 rank\n" in reshard("plan", training).out
    assert ", 6 files and 6 files\n" in reshard("diff", training, training / "global_step_40").out


def test_a_lost_rank_is_refused_and_recovered_by_option(tmp_path: Path, reshard: Callable[..., Any]) -> None:
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")
    case.file(1).unlink()
    done = reshard("convert", case.root, tmp_path / "out", "--layout", "unified")
    assert done.code == 2
    assert "model_world_size_4_rank_1.pt is missing" in done.err
    assert "--recover does without them" in done.err
    assert reshard("convert", case.root, tmp_path / "out", "--layout", "unified", "--recover").code == 0
    assert read_safetensors(tmp_path / "out/model.safetensors") == case.want
