"""What `make conformance` asks DeepSpeed about universal checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.mindspore_process import TORCH_PYTHON, UniversalJudge
from tests.conformance.universal import CASES, save_case, unlike_saved


def test_cases_cover_sizes_and_stages() -> None:
    assert {stage for case in CASES for stage, _ in case.loaded} == {1, 2, 3}
    assert {world for case in CASES for _, world in case.loaded} == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")
def test_another_moment_is_found(tmp_path: Path) -> None:
    case = replace(CASES[0], loaded=((1, 1),), alike=((1, 1),))
    with UniversalJudge(tmp_path / "log") as judge:
        save_case(case, judge, tmp_path / "case")
        [folder] = (tmp_path / "case/made").glob("*/zero/embed.weight")
        shutil.copyfile(folder / "exp_avg_sq.pt", folder / "exp_avg.pt")
        problems = list(unlike_saved(case, judge, tmp_path / "case"))
    assert len(problems) == 3
    assert "exp_avg.embed.weight" in problems[0]
    assert "exp_avg.embed.weight" in problems[1]
    assert "the losses are" in problems[2]
