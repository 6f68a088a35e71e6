"""The pages on protected and on damaged checkpoints are carried out, in their order and as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.storage.urls import parse_url
from demo.make_checkpoint import make_demo
from tests.support.checkpoints import read_rank

PROJECT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def follow(page: str, directory: Path) -> str:
    """Does what a page says in a directory with the demo in it; what was printed."""
    make_demo(parse_url(str(directory / "demo-out")))
    blocks = re.findall(
        r"^```(console|python)\n(.*?)^```", (PROJECT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL
    )
    commands = "\n".join(text for kind, text in blocks if kind == "console")
    programs = [text for kind, text in blocks if kind == "python"]
    return "".join(
        _printed(command, directory)
        for command in (["sh", "-eux", "-c", commands], *([sys.executable, "-c", text] for text in programs))
    )


def _printed(command: list[str], directory: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(PROJECT), "RANK": "0", "WORLD_SIZE": "4"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_protected_checkpoints(tmp_path: Path) -> None:
    printed = follow("protected.md", tmp_path)
    assert "all is as written" in printed
    assert "epoch_num" in printed
    assert "True" in printed
    whole = read_rank(tmp_path / "whole", 0)
    assert read_rank(tmp_path / "thick", 0) == whole
    assert b"tok_embeddings" not in (tmp_path / "encrypted" / "rank_0" / "checkpoint_0.ckpt").read_bytes()


def test_damaged_checkpoints(tmp_path: Path) -> None:
    printed = follow("damaged.md", tmp_path)
    assert "RECOVERABLE" in printed
    assert "RECOVERED  rank_3, rank_4 had no usable file" in printed
    assert "the file of rank 0" in printed
    make_demo(parse_url(str(tmp_path / "sound")))
    sound = ["sh", "-euc", "reshard convert sound/checkpoint fresh --engine direct --source-strategy sound/strategy "]
    sound[-1] += "--target-strategy sound/target_strategy"
    _printed(sound, tmp_path)
    for rank in range(4):
        assert read_rank(tmp_path / "recovered", rank) == read_rank(tmp_path / "fresh", rank)
