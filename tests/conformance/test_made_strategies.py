"""What `make conformance` asks MindSpore about strategies that reshard made."""

from pathlib import Path

import pytest

from tests.conformance import made_strategies
from tests.conformance.mindspore_process import PYTHON, Judge

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="MindSpore is not installed: `make conformance` does it"),
]


def test_as_mindspore_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_strategies, "WISHES", made_strategies.WISHES[:1])
    with Judge(tmp_path / "mindspore.log") as judge:
        assert made_strategies.check_made_strategies(judge, tmp_path / "here") == []
