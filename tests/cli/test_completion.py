"""What shells complete, asked through the scripts that the command prints."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from reshard.cli.completion import complete
from reshard.cli.main import cli
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

_BASH = r"""
set -e
eval "$(reshard completion bash)"
compopt() { echo "$2"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_reshard_completion reshard
printf '%s\n' "${COMPREPLY[@]}"
"""
_FISH = "reshard completion fish | source; complete -C $argv[1]"
_ZSH = r"""
compdef() { :; }
eval "$(reshard completion zsh)"
_describe() { print -l ${(P)4%-U}; }
compadd() { print -l ${(P)@[-1]}; }
_path_files() { print path $1; }
words=("$@"); CURRENT=$#
_reshard_completion
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for rank in range(2):
        folder = tmp_path / "a source" / f"rank_{rank}"
        folder.mkdir(parents=True)
        for name in ("net-9_5.ckpt", "net-10_5.ckpt", "net-10_5_breakpoint.ckpt", "other.txt"):
            (folder / name).touch()
    return tmp_path / "a source"


def shell(tmp_path: Path, *command: str) -> list[str]:
    """The lines that a shell prints, which finds `reshard` on its PATH."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "reshard"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m reshard.cli.main "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., list[str]]:
    """`asked(*words)`: the answer to bash, kinds and values, as its script asks for it."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(("reshard", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert complete(cli, "bash_complete") == 0
        return capfdbinary.readouterr().out.decode().split()

    return ask


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["conv"], ["plain,convert", "plain,convert-latest"]),
        (["conversion"], []),
        (["--v"], ["plain,--version"]),
        (["convert", "--source-s"], ["plain,--source-strategy", "plain,--source-storage"]),
        (["convert", "--no-check-c"], ["plain,--no-check-crc"]),
        (["convert", "--verify", ""], ["plain,none", "plain,structure", "plain,checksum", "plain,content"]),
        (["convert", "--verify", "=", "c"], ["plain,checksum", "plain,content"]),
        (["convert", "--layout", "=", "c"], ["plain,checkpoint2"]),
        (["convert", "s"], ["file,s"]),
        (["convert", "source", "t"], ["dir,t"]),
        (["convert", "--source-strategy", "x"], ["file,x"]),
        (["make-strategy", "--like", "x"], ["file,x"]),
        (["completion", ""], ["plain,bash", "plain,zsh", "plain,fish"]),
    ],
)
def test_what_is_completed(asked: Callable[..., list[str]], words: Sequence[str], completions: list[str]) -> None:
    assert asked(*words) == completions


def test_steps_are_those_of_the_source_the_newest_first(asked: Callable[..., list[str]], source: Path) -> None:
    place = f"'{source}'"
    steps = ["plain,10_5_breakpoint", "plain,10_5", "plain,9_5"]
    assert asked("convert", place, "out", "--step", "") == steps
    assert asked("convert", place, "out", "--step", "10_5") == steps[:2]
    assert asked("doctor", place, "--step", "9") == steps[2:]
    assert asked("diff", "none", place, "--step-b", "9") == steps[2:]
    assert asked("diff", "none", place, "--step-a", "9") == []
    assert asked("convert", "--step", "") == []


def test_bash(tmp_path: Path, source: Path) -> None:
    def completed(*words: str) -> list[str]:
        return shell(tmp_path, "bash", "--norc", "-c", _BASH, "bash", "reshard", *words)

    assert completed("convert", "--verify", "=", "c") == ["checksum", "content"]
    assert completed("convert", r"a\ source", "t") == ["dirnames"]
    assert completed("convert", r"a\ source", "--step", "9") == ["9_5"]


@pytest.mark.slow
def test_fish(tmp_path: Path, source: Path) -> None:
    def completed(line: str) -> list[str]:
        return [found.split("\t")[0] for found in shell(tmp_path, "fish", "--no-config", "-c", _FISH, line)]

    assert completed("reshard conv") == ["convert", "convert-latest"]
    assert completed("reshard convert --verify c") == ["checksum", "content"]
    assert completed("reshard convert a") == ["a source/"]
    assert completed("reshard convert 'a source' --step 9") == ["9_5"]


@pytest.mark.slow
def test_zsh(tmp_path: Path, source: Path) -> None:
    def completed(*words: str) -> list[str]:
        return [found.split(":")[0] for found in shell(tmp_path, "zsh", "-f", "-c", _ZSH, "zsh", "reshard", *words)]

    assert completed("convert", "--verify", "c") == ["checksum", "content"]
    assert completed("convert", "a") == ["path -f"]
    assert completed("convert", r"a\ source", "t") == ["path -/"]
    assert completed("convert", r"a\ source", "--step", "9") == ["9_5"]


def test_a_failure_prints_nothing_into_the_line_that_is_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", "reshard convert '")
    monkeypatch.setenv("COMP_CWORD", "many")
    assert complete(cli, "bash_complete") == 1
    assert complete(cli, "tcsh_complete") == 1
    assert capsys.readouterr() == ("", "")


def test_a_shell_that_is_not_known(reshard: Callable[..., Any]) -> None:
    shown = reshard("completion", "fisch")
    assert (shown.code, shown.out) == (2, "")
    assert "'fisch' is not one of 'bash', 'zsh', 'fish'. Did you mean 'fish'?" in shown.err
