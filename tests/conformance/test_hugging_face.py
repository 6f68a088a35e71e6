"""What `make conformance` asks transformers about presets."""

from pathlib import Path

import pytest

from reshard.core.changes.preset import preset_names, read_preset
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.hugging_face import _FAMILIES, UNKNOWN, build_case
from tests.conformance.mindspore_process import TORCH_PYTHON, TransformersJudge

CASES = [build_case(seed, preset) for preset in _FAMILIES for seed in range(60)]


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3, "qwen3") == CASES[[*_FAMILIES].index("qwen3") * 60 + 3]


def test_every_preset_is_judged() -> None:
    assert {*_FAMILIES, *UNKNOWN} == set(preset_names())


def test_cases_have_every_value_of_every_switch() -> None:
    """But for the dialects of experts: random models are as save_pretrained writes them."""
    for name in _FAMILIES:
        drawn = {switch for case in CASES if case.preset == name for switch in case.switches}
        switches = {key: each for key, each in read_preset(name).switches.items() if key != "experts"}
        worlds = [each for each in read_preset(name).worlds[1:] if each != "megatron"]  # its own code judges those
        values = {f"{key}={value}" for key, each in switches.items() for value in each.values}
        assert drawn == values | {f"names={world}" for world in worlds}


def test_cases_cover_shardings_and_ties() -> None:
    assert {(case.data, case.model, case.stages) for case in CASES} == {
        (data, model, stages) for data in (1, 2) for model in (2, 4) for stages in (1, 2)
    }
    assert {case.config["tie_word_embeddings"] for case in CASES} == {True, False}
    assert {case.dtype for case in CASES} == {"float32", "bfloat16", "float16"}


@pytest.mark.slow
@pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")
def test_the_judge_finds_a_model_of_other_values(tmp_path: Path) -> None:
    """Rows of gate and up in the wrong order load without a word: only the answers are others."""
    case = build_case(1, "qwen3")
    model, whole, back = (tmp_path / name for name in ("model", "whole", "back"))
    switch = {"use_interleaved_weight_layout_mlp": "true", "use_contiguous_weight_layout_attention": "true"}
    options = {"preset": "qwen3", "layout": "unified"}
    with TransformersJudge(tmp_path / "log") as judge:
        judge.ask("make_model", directory=str(model), config=case.config, dtype=case.dtype, seed=1)
        given = [f"{name}={value}" for name, value in switch.items()]
        convert(build_request(source=str(model), target=str(whole), switch=given, **options))
        given = [f"{name}={value}" for name, value in (switch | {"use_interleaved_weight_layout_mlp": "false"}).items()]
        convert(build_request(source=str(whole), target=str(back), switch=given, like=str(model), **options))
        problems = judge.ask("compare_models", directory=str(model), other=str(back), seed=1)
    assert any("mlp.gate_proj.weight" in problem for problem in problems)
    assert any("logits differ by" in problem for problem in problems)
    assert not any("keys" in problem for problem in problems)
