"""What `make conformance` asks Megatron-Core about its checkpoints."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.megatron_core import KINDS, PRESETS, all_sizes, build_case
from tests.conformance.mindspore_process import MEGATRON_PYTHON, TORCH_PYTHON, MegatronJudge

CASES = [build_case(seed) for seed in range(300)]
needs_megatron = pytest.mark.skipif(
    not (MEGATRON_PYTHON.exists() and TORCH_PYTHON.exists()),
    reason="make .venv-megatron/installed .venv-torch/installed",
)


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_megatron_saves() -> None:
    assert {(case.kind, case.target_kind) for case in CASES} == {(one, other) for one in KINDS for other in KINDS}
    assert {case.preset for case in CASES} == {"", *PRESETS}
    assert {case.way for case in CASES} == {"", "unified", "dcp", "ranks"}
    assert {case.model.get("optimizer") for case in CASES} == {None, "plain", "distributed"}
    for field in ("tied", "bias", "qkv_bias", "grouped", "shared", "freq", "mtp", "mla", "expert_bias"):
        assert any(case.model.get(field) for case in CASES), field
    for sizes in ([case.parallel for case in CASES], [case.target for case in CASES]):
        assert {each["tp"] for each in sizes} == {1, 2, 4}
        assert {each["pp"] for each in sizes} == {1, 2, 4}
        assert {each["ep"] for each in sizes} == {1, 2, 4}
        assert any(each["vpp"] and each["first"] for each in sizes)
        assert any(each["etp"] for each in sizes)
    assert any(case.keeps_optimizer for case in CASES)
    read = [case for case in CASES if case.kind == "megatron" and case.reads_optimizer]
    flat = [case for case in read if case.model["optimizer"] == "distributed"]
    assert any(case.parallel["vpp"] for case in flat)
    assert any(case.model["dtype"] == "float32" for case in flat)
    for some in (flat, [case for case in read if case not in flat]):
        assert any((case.parallel["ep"] or 1) > 1 for case in some)


def test_jobs_fit_their_models() -> None:
    model = {"layers": 5, "groups": 2}
    assert {each["tp"] for each in all_sizes(model)} == {1, 2}
    assert all(each["ep"] == 1 and each["etp"] is None for each in all_sizes(model))
    assert all(each["first"] or each["last"] for each in all_sizes(model) if each["pp"] == 2)


@pytest.mark.slow
@needs_megatron
def test_the_judge_finds_rows_in_another_order(tmp_path: Path) -> None:
    """Halves of a gated matrix that change places have the right shape; only their values are others."""
    model = {"layers": 2, "dtype": "float32"}
    made, whole = tmp_path / "made", tmp_path / "whole"
    with MegatronJudge(tmp_path / "log") as judge:
        judge.ask("make", directory=str(made), model=model, seed=1)
        tensors = load_file(made / "want.safetensors")
        name = "decoder.layers.1.mlp.linear_fc1.weight"
        half = len(tensors[name]) // 2
        problems = {}
        for change in (0, half):
            whole.mkdir(exist_ok=True)
            rolled = {name: [*range(change, 2 * half), *range(change)]}
            save_file(
                {key: each[rolled[key]] if key in rolled else each for key, each in tensors.items()},
                whole / "model.safetensors",
            )
            target = str(tmp_path / f"out_{change}")
            convert(build_request(source=str(whole), target=target, layout="megatron", tensor_parallel=2))
            problems[change] = judge.ask(
                "check", directory=target, one=str(made / "one"), model=model, parallel={"tp": 2}, kind="megatron"
            )
    assert problems == {0: [], half: [f"rank {rank}: {name}: other values" for rank in (0, 1)]}
