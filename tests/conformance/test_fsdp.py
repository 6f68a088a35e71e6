"""What `make conformance` asks torch about FSDP's trainings."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.core.errors import ReshardError
from tests.conformance import fsdp
from tests.conformance.fsdp import build_case, save_case
from tests.conformance.mindspore_process import TORCH_PYTHON, FsdpJudge
from tests.conformance.whole_models import unlike_whole
from tests.support.checkpoints import read_safetensors
from tests.support.spoiling import changed, spoil_storage

CASES = [build_case(seed) for seed in range(300)]
needs_torch = pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FsdpJudge]:
    with FsdpJudge(tmp_path_factory.mktemp("judge") / "log") as judge:
        yield judge


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_fsdp_saves() -> None:
    meshes = {(case.job["version"], tuple(case.job["mesh"].items())) for case in CASES}
    assert {mesh for version, mesh in meshes if version == 2} == {tuple(mesh.items()) for mesh in fsdp.MESHES}
    assert {dict(mesh).get("tp", 0) for version, mesh in meshes if version == 1} == {0}
    assert {case.job["optimizer"] for case in CASES} == {None, "Adam", "AdamW"}
    for field in ("tensor_parallel", "dimensions", "wrapped", "original"):
        assert any(case.job[field] for case in CASES), field
    for field in ("buffers", "tied"):
        assert any(case.model[field] for case in CASES), field
    parameters = [list(case.model["parameters"].values()) for case in CASES if case.job["version"] == 2]
    assert any(how["frozen"] for each in parameters for how in each)
    assert any(len({how["dtype"] for how in each}) > 1 for each in parameters)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("kind", ["model", "optim"])
def test_another_byte_is_found(judge: FsdpJudge, tmp_path: Path, kind: str) -> None:
    job = {"mesh": {"fsdp": 2}, "version": 2, "optimizer": "AdamW"}
    case = next(case for case in CASES if case.job.items() >= job.items() and not case.model["tied"])
    source, want = save_case(case, judge, tmp_path / "case")
    spoil_storage(source / f"{kind}_world_size_2_rank_1.pt")
    [line] = unlike_whole(source, tmp_path / "whole", read_safetensors(want))
    assert line.endswith("has other bytes")


@pytest.mark.slow
@needs_torch
def test_what_is_not_one_save_is_refused(judge: FsdpJudge, tmp_path: Path) -> None:
    job = {"mesh": {"fsdp": 3}, "version": 2, "optimizer": "AdamW"}
    case = next(case for case in CASES if case.job.items() >= job.items())
    later = replace(case, job=case.job | {"steps": 3})
    source, _ = save_case(case, judge, tmp_path / "case")
    other, _ = save_case(later, judge, tmp_path / "later")
    models = [source / f"model_world_size_3_rank_{rank}.pt" for rank in range(3)]
    own = [file.read_bytes() for file in models]
    optimizer = source / "optim_world_size_3_rank_1.pt"
    changes: dict[str, dict[Path, bytes | None]] = {
        r"model_world_size_3_rank_2.pt is missing": {models[2]: None},
        r"of the optimizer's step 2.0, .*rank_1.pt of 3.0": {optimizer: (other / optimizer.name).read_bytes()},
        r"its mesh is that of rank 1, not of rank 0": {models[0]: own[1], models[1]: own[0]},
        r"its world_size is 4, the ranks' files are of 3": {source / "fsdp_config.json": b'{"world_size": 4}'},
        r"trainings with 3 and 4 ranks": {source / "model_world_size_4_rank_0.pt": own[0]},
    }
    for message, change in changes.items():
        with changed(change), pytest.raises(ReshardError, match=message):
            unlike_whole(source, tmp_path / "whole", {})
