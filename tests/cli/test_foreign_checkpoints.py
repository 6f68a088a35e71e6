"""Every command that opens a checkpoint names one of another library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DIRECTORIES = {
    "a DeepSpeed training's directory": {"latest": "global_step40", "global_step40/x": ""},
    "a model that verl saved": {"dist_ckpt/common.pt": "", "huggingface/config.json": "{}"},
}
COMMANDS = {
    "convert": "convert {0} {1}",
    "to a Checkpoint 2.0": "convert {0} {1} --layout checkpoint2",
    "plan": "plan {0}",
    "inspect": "inspect {0}",
    "doctor": "doctor {0}",
    "diff": "diff {0} {0}",
    "fingerprint": "fingerprint {0}",
    "recover": "recover {0}",
    "convert-latest": "convert-latest {0} {1} --layout unified",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("title", DIRECTORIES)
def test_every_command_calls_a_foreign_checkpoint_by_its_name(
    title: str, command: str, tmp_path: Path, reshard: Callable[..., Any]
) -> None:
    for name, content in DIRECTORIES[title].items():
        (tmp_path / "ck" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ck" / name).write_text(content)
    done = reshard(*command.format(tmp_path / "ck", tmp_path / "out").split())
    assert done.code == 2
    assert f"ck: is {title}" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.gguf", "w.npz", "m.h5"])
@pytest.mark.parametrize("command", ["inspect", "plan", "fingerprint"])
def test_a_foreign_file_is_called_by_its_name(
    command: str, name: str, tmp_path: Path, reshard: Callable[..., Any]
) -> None:
    (tmp_path / name).touch()
    done = reshard(command, tmp_path / name)
    assert done.code == 2
    assert f"{name}: is a" in done.err
    assert ", which reshard does not read: " in done.err
