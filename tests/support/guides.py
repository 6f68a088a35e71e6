"""Guides of docs/, carried out in their order and as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT


def follow(page: str, directory: Path) -> str:
    """Does what a page says in a directory: its commands, then its programs; what was printed."""
    blocks = re.findall(
        r"^```(console|python)\n(.*?)^```", (PROJECT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL
    )
    commands = "\n".join(text for kind, text in blocks if kind == "console")
    programs = [text for kind, text in blocks if kind == "python"]
    printed = [run_shell(commands, directory)] if commands else []
    return "".join([*printed, *(_printed([sys.executable, "-c", text], directory) for text in programs)])


def run_shell(commands: str, directory: Path) -> str:
    """What shell commands print that are carried out in a directory; the first that fails is an error."""
    return _printed(["sh", "-eux", "-c", commands], directory)


def _printed(command: list[str], directory: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(PROJECT), "RANK": "0", "WORLD_SIZE": "4"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
