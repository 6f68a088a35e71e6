"""The pages on protected and damaged checkpoints, and on their contents, are carried out in order, as they stand."""

from pathlib import Path

import numpy as np
import pytest

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import read_rank
from tests.support.guides import follow, run_shell

pytestmark = pytest.mark.slow


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """Where the user is: the demo is here."""
    make_demo(parse_url(str(tmp_path / "demo-out")))
    return tmp_path


def test_protected_checkpoints(user: Path) -> None:
    printed = follow("guides/protected.md", user)
    assert "all files intact" in printed
    assert "epoch_num" in printed
    assert "True" in printed
    whole = read_rank(user / "whole", 0)
    assert read_rank(user / "thick", 0) == whole
    assert b"tok_embeddings" not in (user / "encrypted" / "rank_0" / "checkpoint_0.ckpt").read_bytes()


def test_damaged_checkpoints(user: Path) -> None:
    printed = follow("guides/damaged.md", user)
    assert "RECOVERABLE" in printed
    assert "RECOVERED  rank_3, rank_4 had no usable file" in printed
    assert "the file of rank 0" in printed
    make_demo(parse_url(str(user / "sound")))
    sound = "--source-strategy sound/strategy --target-strategy sound/target_strategy"
    run_shell(f"reshard convert sound/checkpoint fresh {sound}", user)
    for rank in range(4):
        assert read_rank(user / "recovered", rank) == read_rank(user / "fresh", rank)


def test_looking_into_a_checkpoint(user: Path) -> None:
    printed = follow("guides/contents.md", user)
    assert "no NaN or Inf in " in printed
    assert "wq.npy')" in printed
    assert np.load(user / "wq.npy").shape == (128, 128)
