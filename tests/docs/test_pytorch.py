"""The guide for users of PyTorch is carried out, in its order and to the letter; its program by PyTorch."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.guides import run_shell
from tests.support.places import PROJECT

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
        command = [str(PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", "3", "train.py"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=200)
    assert "the same model" in printed
    assert "DCP, 3 files" in printed
