"""What `make conformance` asks PyTorch about its Distributed Checkpoint."""

from pathlib import Path

import pytest

from tests.conformance import dcp
from tests.conformance.dcp import PYTHON, build_case

CASES = [build_case(seed) for seed in range(200)]


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_torch_writes() -> None:
    assert {case.writer for case in CASES} == {"one", "flat", "many", "threads", "safetensors", "hf"}
    assert {case.mesh for case in CASES} == {(1,), (2,), (3,), (4,), (2, 2)}
    forms = {how["form"] for case in CASES for how in case.how.values()}
    assert forms == {"", "transposed", "cut", "parameter"}
    assert any(0 in shape for case in CASES for _, shape, _ in case.model.values())
    assert any(not shape for case in CASES for _, shape, _ in case.model.values())
    assert any(case.objects for case in CASES)
    assert {dtype for case in CASES for dtype, _, _ in case.model.values()} >= {"BFloat16", "Bool", "Int64"}


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="PyTorch is not installed: `make conformance` does it")
def test_as_torch_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "CASES", 3)
    assert dcp.check_dcp(1, tmp_path / "here") == []
