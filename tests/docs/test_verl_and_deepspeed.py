"""The guide from verl and DeepSpeed to serving and to MindSpore is carried out, in its order and to the letter."""

from pathlib import Path

import pytest

from tests.support.guides import follow

pytestmark = pytest.mark.slow


def test_the_guide(tmp_path: Path) -> None:
    printed = follow("guides/verl-and-deepspeed.md", tmp_path)
    assert printed.count("the same model") == 4
    assert "content: the values of 39 parameters equal the source's" in printed
    assert (tmp_path / "nightly" / "40" / "config.json").exists()
