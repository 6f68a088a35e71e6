"""What `make conformance` asks MindSpore about redundancy and parts."""

from pathlib import Path

import pytest

from tests.conformance import redundancy_and_parts
from tests.conformance.mindspore_process import PYTHON, Judge
from tests.support.checkpoints import case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="MindSpore is not installed: `make conformance` does it"),
]


def test_as_mindspore_reads_and_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redundancy_and_parts, "WITHOUT_REDUNDANCY", (7011,))
    monkeypatch.setattr(redundancy_and_parts, "_check_loading", lambda directory: [])  # takes half a minute
    with Judge(tmp_path / "mindspore.log") as judge:
        assert redundancy_and_parts.check_redundancy_and_parts(judge, tmp_path / "here") == []
        holders = redundancy_and_parts._check_holders
        strategy = str(case(7011).directory / "dst_strategy.ckpt")
        assert list(holders(judge, tmp_path / "here/7011_1", strategy, replicas=2)), "or the check proves nothing"
