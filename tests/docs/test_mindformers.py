"""The guide for users of MindFormers is carried out, in its order and to the letter."""

import json
from pathlib import Path

import pytest

from tests.support.guides import follow
from tests.support.iterations import tracked

pytestmark = pytest.mark.slow


def test_the_guide(tmp_path: Path) -> None:
    printed = follow("guides/mindformers.md", tmp_path)
    assert printed.count("the same model") == 2
    for root in ("output/checkpoint", "tuning/checkpoint", "nightly"):
        assert tracked(tmp_path / root) == "1200"
        made = tmp_path / root / "iteration_00001200"
        assert json.loads((made / "common.json").read_text())["global_step"] == 1200
