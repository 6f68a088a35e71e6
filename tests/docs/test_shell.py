"""The commands of the page on the shell run, in its order and unchanged."""

from pathlib import Path

import pytest

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import read_rank
from tests.support.guides import follow

pytestmark = pytest.mark.slow


def test_a_job_in_a_file(tmp_path: Path) -> None:
    make_demo(parse_url(str(tmp_path / "demo-out")))
    assert "8 -> 1" in follow("guides/shell.md", tmp_path)
    assert "step: '3_1200'" in (tmp_path / "job.yaml").read_text()
    assert len(read_rank(tmp_path / "demo-out" / "by_job", 0)) == 119
