"""Running the command, in this process and as one of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.main import run

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def reshard(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`reshard(*arguments)` in this process."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def spawned() -> Callable[..., Result]:
    """`spawned(*arguments)`: the command in a process of its own, without a terminal."""

    def call(*arguments: object) -> Result:
        command = [sys.executable, "-m", "cli.main", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    return call
