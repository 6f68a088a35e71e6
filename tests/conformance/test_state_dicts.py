"""What `make conformance` asks torch about state dicts."""

from pathlib import Path

import pytest

from tests.conformance import state_dicts
from tests.conformance.mindspore_process import TORCH_PYTHON, StateDictJudge
from tests.conformance.state_dicts import build_case, save_case
from tests.conformance.whole_models import unlike_whole
from tests.support.spoiling import spoil_storage

CASES = [build_case(seed) for seed in range(300)]
needs_torch = pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_torch_saves() -> None:
    assert {case.files["way"] for case in CASES} == {"one", "numbered", "hub"}
    assert {case.files["protocol"] for case in CASES} == {2, 4, 5}
    assert {case.files.get("root", "") for case in CASES} == {"", "model", "module.model"}
    tensors = [tensor for case in CASES for tensor in case.tensors]
    assert any("tied" in tensor for tensor in tensors)
    own = [tensor for tensor in tensors if "tied" not in tensor]
    assert {tensor["dtype"] for tensor in own} == set(state_dicts.DTYPES)
    assert {tensor["form"] for tensor in own} == {"", "transposed", "cut", "stepped", "expanded", "parameter"}
    assert any(0 in tensor["shape"] for tensor in own)
    assert any(not tensor["shape"] for tensor in own)


@pytest.mark.slow
@needs_torch
def test_another_byte_is_found(tmp_path: Path) -> None:
    weight = {"name": "weight", "dtype": "float32", "shape": [40, 50], "form": "", "seed": 1}
    files = {"way": "one", "protocol": 2, "name": "weights.pt", "root": ""}
    with StateDictJudge(tmp_path / "log") as judge:
        source, want = save_case(state_dicts.StateDictCase(0, [weight], files), judge, tmp_path / "case")
    spoil_storage(source)
    found = unlike_whole(source, tmp_path / "whole", want)
    assert found == ["whole rank 0 weight has other bytes"]
