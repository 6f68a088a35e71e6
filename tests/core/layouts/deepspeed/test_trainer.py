"""A checkpoint-40/ of Hugging Face's Trainer: DeepSpeed's tag, the model's directory, and sometimes its weights."""

import json
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.layouts.survey import find_number, find_steps
from reshard.core.source.description import describe
from tests.support.checkpoints import write_safetensors
from tests.support.deepspeed_files import made, to_whole
from tests.support.zero_files import ZeroTraining, expected, random_model, write_zero

MODEL, TRAINING = random_model(0, [{"a.weight": (3, 4), "b.weight": (5,)}]), ZeroTraining()
BESIDE = {
    "trainer_state.json": "{}",
    "tokenizer.json": '{"a": 1}',
    "zero_to_fp32.py": "",
    "rng_state_0.pth": "",
}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    root = tmp_path / "checkpoint-40"
    write_zero(root, MODEL, TRAINING)
    (root / "config.json").write_text(json.dumps({"model_type": "tiny", "torch_dtype": "bfloat16"}))
    for name, text in BESIDE.items():
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("tag", ["", "global_step40"])
def test_configuration_and_tokenizer_come_along(trained: Path, tag: str, tmp_path: Path) -> None:
    convert(to_whole(trained / tag, tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "tiny"
    assert (tmp_path / "out" / "tokenizer.json").read_text() == BESIDE["tokenizer.json"]


def test_what_is_not_read_is_listed(trained: Path) -> None:
    (trained / "global_step40" / "x").touch()
    assert set(describe(str(trained))["ignored"]) == {*BESIDE, "config.json", "global_step40/x"}


def test_a_directory_with_weights_is_read_as_these_with_a_note(trained: Path, tmp_path: Path) -> None:
    contents = {name: each for name, each in expected(MODEL, TRAINING).items() if not name.startswith("exp_avg")}
    write_safetensors(trained / "model.safetensors", contents)
    report = convert(to_whole(trained, tmp_path / "out"))
    assert made(tmp_path / "out") == contents
    assert find_number(str(trained)) is None
    with pytest.raises(CatalogError, match="is a unified checkpoint"):
        find_steps(str(trained))
    assert (
        "its training's float32 masters and optimizer's states are not in it, but in global_step40/, a DeepSpeed "
        f"checkpoint: name {trained}/global_step40 to read these"
    ) in report.notes
    convert(to_whole(trained / "global_step40", tmp_path / "states"))
    assert made(tmp_path / "states").keys() == expected(MODEL, TRAINING).keys()


def test_the_directory_of_all_checkpoints_names_the_newest_complete_one(trained: Path) -> None:
    torn = trained.parent / "checkpoint-60"
    write_zero(torn, MODEL, TRAINING)
    (trained.parent / "runs").mkdir()
    for look in (describe, find_steps):
        with pytest.raises(CatalogError) as refused:
            look(str(trained.parent))
        assert str(refused.value) == (
            f"{trained.parent}: is an output directory of Hugging Face's Trainer. No step chooses between its "
            f"checkpoints, each of which is a source of its own: name one. {trained} is the newest complete one"
        )


def test_any_other_configuration_is_left_alone(trained: Path, tmp_path: Path) -> None:
    (trained / "trainer_state.json").unlink()
    convert(to_whole(trained, tmp_path / "out"))
    assert not (tmp_path / "out" / "config.json").exists()
