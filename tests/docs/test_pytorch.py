"""The guide for users of PyTorch is carried out, in its order and to the letter; its program by PyTorch."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.guides import run_shell
from tests.support.places import PROJECT
from tests.support.prefect_server import free_port

PYTHON = PROJECT / ".venv-torch" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="PyTorch is not installed: `make conformance` does it"),
]


def test_the_guide(tmp_path: Path) -> None:
    page = (PROJECT / "docs/guides/pytorch.md").read_text()
    blocks = re.findall(r"^```(console|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    printed = ""
    for kind, text in blocks:
        if kind == "console":
            printed += run_shell(text, tmp_path)
            continue
        (tmp_path / "train.py").write_text(text)
        train(tmp_path)
    assert "the same model" in printed
    assert "DCP, 3 files" in printed


def train(directory: Path) -> None:
    """Runs train.py as the guide says.

    On a busy machine gloo's processes may miss one another before a line of the program has run, and those that are
    restarted by their launcher do so again: a launch that ends in gloo's own words is made anew, at another port.
    """
    for _ in range(4):
        done = launch(directory)
        if done.returncode == 0:
            return
        if "Gloo connectFullMesh failed" not in done.stdout and "terminate called" not in done.stdout:
            break
    raise AssertionError(done.stdout)


def launch(directory: Path) -> subprocess.CompletedProcess[str]:
    options = ["--nproc-per-node", "3", "--master-port", str(free_port())]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(PYTHON), "-m", "torch.distributed.run", *options, "train.py"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
