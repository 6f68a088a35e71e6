"""What `make conformance` asks DeepSpeed about ZeRO's trainings."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.core.errors import ReshardError
from tests.conformance.mindspore_process import TORCH_PYTHON, ZeroJudge
from tests.conformance.whole_models import problems_of, unlike_whole
from tests.conformance.zero import build_case, save_case
from tests.support.checkpoints import read_safetensors
from tests.support.spoiling import changed, spoil_storage

CASES = [build_case(seed) for seed in range(300)]
_ALL = {
    "step": r"not of one save(.|\n)*rank_1(.|\n)*step",
    "exchanged": r"rank_0.*: was saved as .*rank_1",
    "copied": r"rank_1.*: was saved as .*rank_0",
}
_JOINED = {"missing": r"not of one save(.|\n)*of 3 ranks?, but there are files of 2", **_ALL}
_MESSAGES = {1: _JOINED, 2: _JOINED, 3: {"missing": r"3 files of the model and 2 files of the optimizer", **_ALL}}
"""Stage -> what is wrong -> what is said of it."""
needs_deepspeed = pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZeroJudge]:
    with ZeroJudge(tmp_path_factory.mktemp("judge") / "log") as judge:
        yield judge


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_deepspeed_saves() -> None:
    assert {(case.stage, case.job["world"]) for case in CASES} == {
        (stage, world) for stage in (1, 2, 3) for world in (1, 2, 3, 4)
    }
    for stage in (1, 2, 3):
        some = [case for case in CASES if case.stage == stage]
        assert {case.job["groups"] for case in some} == {1, 2, 3}
        assert {("bf16" in case.job["config"], "fp16" in case.job["config"]) for case in some} == {
            (True, False),
            (False, True),
            (False, False),
        }
        assert any("data_types" in case.job["config"] for case in some)
        assert any("offload_optimizer" in case.settings for case in some)
        assert any(how["frozen"] for case in some for how in case.model["parameters"].values())
        assert any(case.model["tied"] for case in some)
        assert any(case.model["buffers"] for case in some)
    for name in ("round_robin_gradients", "elastic_checkpoint", "parameter_alignment"):
        assert {case.stage for case in CASES if name in case.settings} == {1, 2}, name
    for name in ("sub_group_size", "stage3_param_persistence_threshold", "offload_param"):
        assert {case.stage for case in CASES if name in case.settings} == {3}, name
    assert any(case.job["partitioned"] for case in CASES)


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_another_byte_is_found(judge: ZeroJudge, tmp_path: Path, stage: int) -> None:
    case = next(case for case in CASES if case.stage == stage and case.job["world"] == 2)
    source, want = save_case(case, judge, tmp_path / "case")
    [file] = source.glob("*/*pp_rank_1_mp_rank_00_optim_states.pt")
    spoil_storage(file)
    assert [*problems_of(case, unlike_whole(source, tmp_path / "whole", read_safetensors(want)))]


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_not_one_save_is_refused(judge: ZeroJudge, tmp_path: Path, stage: int) -> None:
    case = next(case for case in CASES if case.stage == stage and case.job["world"] == 3 and case.job["groups"] == 2)
    later = replace(case, job=case.job | {"steps": 3})
    source, _ = save_case(case, judge, tmp_path / "case")
    other, _ = save_case(later, judge, tmp_path / "later")
    folder = source / "global_step2"
    first, second, third = sorted(folder.glob("*pp_rank_?_mp_rank_00_optim_states.pt"))
    own = [file.read_bytes() for file in (first, second)]
    later_one = (other / "global_step3" / second.name).read_bytes()
    changes: dict[str, dict[Path, bytes | None]] = {
        "missing": {third: None},
        "step": {second: later_one},
        "exchanged": {first: own[1], second: own[0]},
        "copied": {second: own[0]},
    }
    for what, change in changes.items():
        with changed(change), pytest.raises(ReshardError, match=_MESSAGES[stage][what]):
            unlike_whole(source, tmp_path / "whole", {})
