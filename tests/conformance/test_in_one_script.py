"""A script that uses MindSpore and reshard together: `in_one_script`, in MindSpore's environment."""

import subprocess
from pathlib import Path

import pytest

from tests.conformance.mindspore_process import PYTHON
from tests.support.places import PROJECT

_SCRIPT = Path(__file__).with_name("in_one_script.py")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="MindSpore is not installed: `make conformance` does it")
def test_cells_and_configurations_go_from_one_to_the_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, _SCRIPT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin", "GLOG_v": "4", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" checks\n")
