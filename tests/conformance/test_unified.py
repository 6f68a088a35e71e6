"""What `make conformance` asks MindSpore about unified checkpoints."""

from pathlib import Path

import pytest

from tests.conformance import unified
from tests.conformance.mindspore_process import PYTHON, Judge

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="MindSpore is not installed: `make conformance` does it"),
]


def test_as_mindspore_reads_and_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unified, "CASES", (7011,))
    with Judge(tmp_path / "mindspore.log") as judge:
        assert unified.check_unified(judge, tmp_path / "here") == []
