"""Running the command, in this process and as one of its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.cli.main import run
from tests.support.command import Result
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT


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
        command = [sys.executable, "-m", "reshard.cli.main", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def bounded(reshard: Callable[..., Result], tmp_path: Path) -> Callable[..., Result]:
    """`reshard`, failing after some time if it waits for a pipe below `tmp_path`."""

    def call(*arguments: object) -> Result:
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(reshard(*arguments)), daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        if thread.is_alive():
            for path in tmp_path.rglob("*"):
                if path.is_fifo():  # unblocks a reader that waits for a writer, else the tests would never end
                    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            pytest.fail(f"reshard {arguments[0]} did not end")
        [result] = results
        return result

    return call
