"""reshard installed beside MindSpore: its wheel and the lowest versions that it requires, in one environment."""

import subprocess
import sys
from pathlib import Path

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.conformance.mindspore_process import PYTHON, Judge
from tests.support.places import PROJECT

_TIMEOUT_SECONDS = 120.0
_PROGRAM = """
import sys
from pathlib import Path

import mindspore
import numpy as np

import reshard

assert Path(reshard.__file__).parent.parent == Path("site").resolve(), reshard.__file__
strategies = {"source_strategy": "demo/strategy", "target_strategy": "demo/target_strategy"}
for format in ("ckpt", "safetensors"):
    report = reshard.convert("demo/checkpoint", format, **strategies, format=format)
    for rank in report.ranks:
        loaded = mindspore.load_checkpoint(f"{format}/{rank.file}", format=format)
        expected = dict(reshard.load_rank("demo/checkpoint", rank.rank, **strategies))
        assert loaded.keys() == expected.keys(), loaded.keys() ^ expected.keys()
        for name, parameter in loaded.items():
            array = parameter.float().asnumpy() if str(parameter.dtype) == "BFloat16" else parameter.asnumpy()
            assert np.array_equal(array, np.asarray(expected[name]).astype(array.dtype)), (format, rank.rank, name)
assert not {"prefect", "click"} & sys.modules.keys()
"""


def check_beside_mindspore(judge: Judge, directory: Path) -> list[str]:
    """What keeps both from working in one environment; the judge is not asked."""
    directory.mkdir()
    make_demo(parse_url(str(directory / "demo")))
    _run(PROJECT, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory / "wheel")
    [wheel] = (directory / "wheel").iterdir()
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", f"--target={directory / 'site'}")
    _run(directory, sys.executable, *install, wheel)
    commands = {
        "their requirements": ("-m", "pip", "check", "--disable-pip-version-check"),
        "a conversion": ("-W", "ignore", "-c", _PROGRAM),
    }
    problems = {name: _run(directory, PYTHON, *arguments, check=False) for name, arguments in commands.items()}
    return [f"{name}: {problem}" for name, problem in problems.items() if problem]


def _run(directory: Path, *command: str | Path, check: bool = True) -> str:
    """What a command that failed printed."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={"PYTHONPATH": str(directory / "site"), "PATH": "/usr/bin:/bin", "GLOG_v": "3"},
        capture_output=True,
        text=True,
        check=check,
        timeout=_TIMEOUT_SECONDS,
    )
    return (done.stdout + done.stderr).strip() if done.returncode else ""
