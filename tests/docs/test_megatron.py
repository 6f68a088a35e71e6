"""The guide for users of Megatron and MindSpeed is carried out, in its order and to the letter."""

from pathlib import Path

import pytest

from tests.support.guides import follow
from tests.support.iterations import tracked

pytestmark = pytest.mark.slow


def test_the_guide(tmp_path: Path) -> None:
    printed = follow("guides/megatron.md", tmp_path)
    assert printed.count("the same model") == 5
    assert "tensor 2, pipeline 2" in printed
    for root in ("megatron", "wider", "distributed"):
        assert tracked(tmp_path / root) == "1200"
    assert tracked(tmp_path / "again") == "release"
