"""The example of 671 billion parameters is carried out, in its order and to the letter."""

from pathlib import Path

import pytest

from tests.support.guides import follow

pytestmark = pytest.mark.slow


def test_the_guide(tmp_path: Path) -> None:
    printed = follow("guides/full-size.md", tmp_path)
    assert "1024 ranks -> 275 files" in printed
    assert "46183 made whole" in printed
    assert "about 42 min 30 s at 2.0 GiB/s" in printed
