"""The same training saved by MindSpore's ModelCheckpoint and by reshard's, step by step, in MindSpore's environment."""

import json
import subprocess
from pathlib import Path

from tests.conformance.mindspore_process import PYTHON, Judge
from tests.support.places import PROJECT

_SCRIPT = Path(__file__).with_name("trained_twice.py")
_TIMEOUT_SECONDS = 300.0


def check_saving_trainings(judge: Judge, directory: Path) -> list[str]:
    """What differs between the files of the two; the judge's process is not asked, but one of its own."""
    directory.mkdir()
    done = subprocess.run(
        [PYTHON, "-W", "error::RuntimeWarning:reshard", _SCRIPT],
        cwd=directory,
        env={"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin", "GLOG_v": "4", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    if done.returncode:
        return [f"the training ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"]
    problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    return problems
