"""The commands of the guide to LoRA adapters run, in its order and unchanged."""

from pathlib import Path

import pytest

from tests.support.guides import follow


@pytest.mark.slow
def test_adapters_are_merged(tmp_path: Path) -> None:
    printed = follow("guides/lora.md", tmp_path)
    assert "merged into 1 parameter" in printed
    assert printed.count("the same model") == 1
