"""What `make conformance` asks transformers about presets."""

from pathlib import Path

import pytest

from reshard.core.changes.preset import preset_names, read_preset
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.families import FAMILIES, UNKNOWN, Family
from tests.conformance.hugging_face import build_case, check_case, judged_worlds, open_switches, open_values
from tests.conformance.mindspore_process import TORCH_PYTHON, TransformersJudge

KINDS = [(family, world) for family in FAMILIES for world in judged_worlds(family)]
CASES = [build_case(seed, family, world) for family, world in KINDS for seed in range(30)]
NEEDS_TRANSFORMERS = pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3, *KINDS[0]) == CASES[3]


def test_every_preset_is_judged() -> None:
    assert {*(family.preset for family in FAMILIES), *UNKNOWN} == set(preset_names())


def test_every_world_is_judged_or_has_a_reason() -> None:
    for family in FAMILIES:
        assert family.without.keys() <= {*read_preset(family.preset).worlds}
        assert all(family.without.values())
        assert judged_worlds(family) or read_preset(family.preset).dialects  # of which test_dialects.py is the judge


def test_cases_have_every_value_of_every_switch() -> None:
    """But for those that Hugging Face's names show: random models are as save_pretrained writes them."""
    for family, world in KINDS:
        cases = [case for case in CASES if (case.family, case.world) == (family, world)]
        for name, values in open_values(family, world).items():
            assert {case.switches[name] for case in cases} == {*values}


def test_the_switches_of_worlds_are_those_of_presets() -> None:
    for family in FAMILIES:
        of_worlds = {name for world in judged_worlds(family) for name in open_switches(family.preset, world)}
        assert read_preset(family.preset).switches.keys() - of_worlds <= {"experts", "mtp_experts"}


def test_cases_cover_shardings_and_ties() -> None:
    assert {(case.data, case.model, case.stages) for case in CASES} == {
        (data, model, stages) for data in (1, 2) for model in (2, 4) for stages in (1, 2)
    }
    assert {case.config["tie_word_embeddings"] for case in CASES} == {True, False}
    assert {case.dtype for case in CASES} == {"float32", "bfloat16", "float16"}


@pytest.mark.slow
@NEEDS_TRANSFORMERS
@pytest.mark.parametrize(("family", "world"), KINDS, ids=[f"{family.preset}-{world}" for family, world in KINDS])
def test_a_model_goes_through_each_world(
    family: Family, world: str, transformers: TransformersJudge, tmp_path: Path
) -> None:
    assert check_case(build_case(1, family, world), transformers, tmp_path / "case") == []


@pytest.mark.slow
@NEEDS_TRANSFORMERS
def test_the_judge_finds_a_model_of_other_values(transformers: TransformersJudge, tmp_path: Path) -> None:
    """Rows of gate and up in the wrong order load without a word: only the answers are others."""
    case = build_case(1, FAMILIES[0], "mcore")
    model, whole, back = (tmp_path / name for name in ("model", "whole", "back"))
    switch = {"use_interleaved_weight_layout_mlp": "true", "use_contiguous_weight_layout_attention": "true"}
    options = {"preset": "qwen3", "layout": "unified"}
    transformers.ask("make_model", directory=str(model), config=case.config, dtype=case.dtype, seed=1)
    given = [f"{name}={value}" for name, value in switch.items()]
    convert(build_request(source=str(model), target=str(whole), switch=given, **options))
    given = [f"{name}={value}" for name, value in (switch | {"use_interleaved_weight_layout_mlp": "false"}).items()]
    convert(build_request(source=str(whole), target=str(back), switch=given, like=str(model), **options))
    problems = transformers.ask("compare_models", directory=str(model), other=str(back), seed=1)
    assert any("mlp.gate_proj.weight" in problem for problem in problems)
    assert any("logits differ by" in problem for problem in problems)
    assert not any("keys" in problem for problem in problems)
