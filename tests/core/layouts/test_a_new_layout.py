"""A layout of its own, `.npy` files, added by its package and its name in the list: a source and a target as others.

Its package is `toys/npy`; `toys/with_npy.py` adds it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

ARRAYS: dict[str, Any] = {
    "b": np.arange(6, dtype=np.int8),
    "scalar": np.array(2.5, dtype=np.float64),
    "w": np.arange(48, dtype=np.float32).reshape(8, 6),
}


def with_npy(*arguments: str) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.core.layouts.toys.with_npy", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


class Commands:
    """Commands of one process, by name: their exit codes and what they print."""

    def __init__(self, directory: Path, commands: dict[str, str]) -> None:
        lines = [[each.replace("AT", str(directory)) for each in text.split()] for text in commands.values()]
        self.answers = dict(zip(commands, with_npy(json.dumps(lines)), strict=True))

    def text(self, name: str, code: int = 0) -> str:
        found, text = self.answers[name]
        assert found == code, text
        return text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("npy")
    (directory / "arrays").mkdir()
    for name, array in ARRAYS.items():
        np.save(directory / "arrays" / f"{name}.npy", array)
    (directory / "arrays" / "README").write_text("three arrays")
    save_file(ARRAYS, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def ran(directory: Path) -> Commands:
    return Commands(
        directory,
        {
            "inspect": "inspect AT/arrays",
            "doctor": "doctor AT/arrays",
            "plan": "plan AT/arrays --layout unified",
            "from": "convert AT/arrays AT/unified --layout unified --verify content",
            "part": "convert AT/unified AT/out --layout npy --npy-version 2 --ranks 0",
            "rest": "convert AT/unified AT/out --layout npy --npy-version 2",
            "again": "convert AT/unified AT/out --layout npy --npy-version 2",
            "verify": "verify AT/out --level content",
            "diff": "diff AT/arrays AT/out",
            "back": "convert AT/out AT/ranks --verify content",
            "inspect target": "inspect AT/out",
            "copy": "convert AT/arrays AT/copy --layout npy --engine direct",
            "steps": "convert AT/arrays AT/none --step 1",
            "strategy": "doctor AT/arrays --source-strategy AT/arrays",
            "format": "convert AT/arrays AT/none --layout npy --format ckpt",
            "refused": "convert AT/arrays AT/none --layout npy --write-crc",
            "not its option": "convert AT/arrays AT/none --npy-version 2",
            "help": "convert --help",
        },
    )


def loaded(directory: Path) -> dict[str, Any]:
    return {path.stem: np.load(path) for path in directory.glob("*.npy")}


def assert_same(found: dict[str, Any]) -> None:
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        name: (array.dtype, array.tolist()) for name, array in ARRAYS.items()
    }


def test_it_is_recognized_and_inspected(ran: Commands, directory: Path) -> None:
    assert ran.text("inspect").split() == ["arrays", f"{directory}/arrays", "files", "b.npy,", "scalar.npy,", "w.npy"]
    assert "no strategy: its arrays are whole" in ran.text("doctor")
    assert "3 files" in ran.text("plan")


def test_it_is_converted_into_another_layout(ran: Commands, directory: Path) -> None:
    ran.text("from")
    assert_same(load_file(directory / "unified" / "model.safetensors"))


def test_it_is_written(ran: Commands, directory: Path) -> None:
    ran.text("copy")
    assert_same(loaded(directory / "copy"))
    for name in ARRAYS:
        assert (directory / "copy" / f"{name}.npy").read_bytes() == (directory / "arrays" / f"{name}.npy").read_bytes()


def test_an_incomplete_target_is_resumed(ran: Commands, directory: Path) -> None:
    assert "NOT COMPLETE: 2 files of 3 not yet written" in ran.text("part")
    assert "resuming: 1 of 3 files are done already" in ran.text("rest")
    assert_same(loaded(directory / "out"))
    assert "already converted" in ran.text("again")


def test_its_target_is_verified_compared_and_converted_again(ran: Commands, directory: Path) -> None:
    ran.text("verify")
    ran.text("diff")
    assert "1 -> 3 files of whole tensors" in ran.text("inspect target")
    ran.text("back")
    assert_same(load_file(directory / "ranks" / "rank_0" / "checkpoint_0.safetensors"))


def test_a_changed_file_of_its_target_is_found(ran: Commands, directory: Path) -> None:
    path = directory / "copy" / "w.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\xff")
    changed = Commands(directory, {"verify": "verify AT/copy"}).text("verify", 1)
    path.write_bytes(data)
    assert "w.npy: parameter 'w': its bytes are not those that were written" in changed


def test_its_option_is_one_of_the_command(ran: Commands, directory: Path) -> None:
    assert "[ranks|unified|checkpoint2|torch_dist|dcp|megatron|universal|npy]" in ran.text("help")
    assert "--npy-version 1|2" in ran.text("help")
    assert "Version of the heads." in ran.text("help")
    assert (directory / "out" / "w.npy").read_bytes()[6:8] == b"\x02\x00"


def test_it_refuses_options_in_its_own_words(ran: Commands) -> None:
    assert "arrays have no steps" in ran.text("steps", 2)
    assert "says itself how it is sharded, so leave out --source-strategy" in ran.text("strategy", 2)
    assert "writes .npy files: leave out --format" in ran.text("format", 2)
    assert "arrays carry no CRC" in ran.text("refused", 2)
    assert "only valid with --layout npy" in ran.text("not its option", 2)


@pytest.fixture(scope="module")
def shown() -> Any:
    return with_npy()


def test_its_option_is_a_field_of_the_forms(shown: dict[str, Any]) -> None:
    assert shown["flat"]["npy_version"]["title"] == "Output: Npy version"
    assert shown["flat"]["npy_version"]["description"] == "Version of the heads."
    assert shown["flat"]["layout"]["description"].endswith(" npy: a .npy file for each tensor.")
    assert [group["npy_version"]["default"] for group in shown["groups"]] == [1, 1, 1]
    assert shown["layouts"] == ["ranks", "unified", "checkpoint2", "torch_dist", "dcp", "megatron", "universal", "npy"]


def test_its_option_is_in_job_files(shown: dict[str, Any]) -> None:
    assert shown["job"] == "source: a\ntarget: b\nlayout: npy\nnpy_version: 2\n"
    assert shown["parsed"] == {"source": "a", "target": "b", "layout": "npy", "npy_version": "2"}


def test_its_option_is_a_keyword_and_in_the_reference(shown: dict[str, Any]) -> None:
    assert "        npy_version: Version of the heads.\n" in shown["keywords"]
    assert "    npy_version: int = 1,\n" in shown["keywords"]
    names = '"ranks", "unified", "checkpoint2", "torch_dist", "dcp", "megatron", "universal", "npy"'
    assert f"Literal[{names}]" in shown["keywords"]
    assert "`--npy-version 1|2` (`RESHARD_NPY_VERSION`): Version of the heads. (default: 1)" in shown["reference"]


def test_its_option_is_refused_where_nothing_is_written(shown: dict[str, Any]) -> None:
    assert shown["loading"] == "npy_version: only for writing a target, and loading writes none: leave it out"
