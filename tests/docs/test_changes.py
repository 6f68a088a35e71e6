"""The commands of the page on changed parameters run, in its order and unchanged."""

from pathlib import Path

import pytest

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.guides import follow

pytestmark = pytest.mark.slow


def test_changes(tmp_path: Path) -> None:
    make_demo(parse_url(str(tmp_path / "demo-out")))
    assert "the same model: 38 parameters" in follow("guides/changes.md", tmp_path)
