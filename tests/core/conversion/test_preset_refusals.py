"""What presets refuse: a config.json that counts too much, and models that would lack something unnoticed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.changes.preset import preset_text, read_preset
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.support.families import Family, exported, switches_of


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"num_hidden_layers": 2**62}, f"num_hidden_layers is {2**62}, more than 1,048,576, the limit"),
        ({"num_experts": 2**20 + 1}, f"num_experts is {2**20 + 1}, more than 1,048,576, the limit"),
        ({"num_experts": 10**40}, f"num_experts is {10**40}, more than 1,048,576, the limit"),
        ({"num_hidden_layers": 2**20}, "by config.json the model has more than 1,048,576 parameters, the limit"),
        ({"num_hidden_layers": 2**10, "num_experts": 2**20}, "the model has more than 1,048,576 parameters, the limit"),
    ],
)
def test_a_config_that_counts_too_much(numbers: dict[str, int], problem: str, tmp_path: Path) -> None:
    family = Family("qwen3_moe")
    directory = Path(shutil.copytree(family.hf, tmp_path / "hf"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | numbers))
    request = build_request(
        source=str(directory),
        target=str(tmp_path / "out"),
        format="safetensors",
        preset="qwen3_moe",
        switch=switches_of(family, to_mf=True),
    )
    with pytest.raises((InputError, PlanError)) as error:
        make_plan(request)
    assert problem in str(error.value)


def of_model(family: Family, directory: Path, model: str | None) -> str:
    """A directory with the family's config.json, but of another `model_type`."""
    config = json.loads((family.hf / "config.json").read_text()) | {"model_type": model}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@pytest.mark.parametrize(
    ("family", "model", "models"),
    [
        ("llama", "gemma", ", ".join(read_preset("llama").models)),
        ("llama", "ernie4_5", ", ".join(read_preset("llama").models)),
        ("qwen2", "seed_oss", "qwen2"),
        ("qwen3_moe", "qwen3", "qwen3_moe"),
    ],
)
def test_a_model_of_another_family_is_refused_though_its_names_fit(
    family: str, model: str, models: str, tmp_path: Path
) -> None:
    known = Family(family)
    request = exported(known, tmp_path / "out", like=of_model(known, tmp_path / "like", model))
    with pytest.raises(InputError) as error:
        make_plan(request)
    assert str(error.value) == (
        f"{tmp_path}/like: config.json is a {model!r} model's, and preset {family} is for {models}: name the preset of "
        "its family (reshard presets lists them), or, if its names and layouts are those of the preset, "
        f"allow_model=['{model}']"
    )
    with pytest.raises(InputError, match="allow_model="):
        make_plan(request.model_copy(update={"allow_model": ["another"]}))
    plan = make_plan(request.model_copy(update={"allow_model": [model]}))
    assert f"preset {family}: made for {models}, and used for {model}, as allowed" in plan_notes(plan)


def test_a_comparison_refuses_a_model_of_another_family_too(tmp_path: Path) -> None:
    family = Family("llama")
    other = Path(of_model(family, tmp_path / "other", "gemma"))
    for weights in family.hf.glob("*.safetensors*"):
        shutil.copy(weights, other)
    options = {"a": str(family.mf), "b": str(other), "preset": "llama"}
    with pytest.raises(InputError, match=r"allow_model=\['gemma'\]"):
        compare_checkpoints(build_comparison(**options))
    assert compare_checkpoints(build_comparison(**options, allow_model=["gemma"])).same


def test_a_configuration_without_a_model_type_is_noted(tmp_path: Path) -> None:
    family = Family("llama")
    plan = make_plan(exported(family, tmp_path / "out", like=of_model(family, tmp_path / "like", None)))
    said = "preset llama: config.json has no model_type, so that the model's family was not checked"
    assert said in plan_notes(plan)


def reference(family: Family, directory: Path) -> str:
    """A directory with the model's config.json, and no weights to hold the result against."""
    directory.mkdir()
    shutil.copy(family.hf / "config.json", directory)
    return str(directory)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"attention_bias": True},
            "parameter 'model.layers.0.attention.wq.bias' is missing: config.json asks for it (attention_bias)",
        ),
        (
            {"mlp_bias": True},
            "config.json asks for 'model.layers.{L}.mlp.gate_proj.bias' (mlp_bias), and the preset has no row of it",
        ),
    ],
)
def test_biases_that_a_loader_would_draw_at_random(fields: dict[str, bool], problem: str, tmp_path: Path) -> None:
    family = Family("llama")
    config = json.loads((family.hf / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = {"preset": "llama", "layout": "unified", "config_json": str(tmp_path)}
    with pytest.raises(PlanError) as error:
        make_plan(build_request(source=str(family.mf), target=str(tmp_path / "out"), **options))
    assert problem in str(error.value)


@pytest.mark.parametrize("to_mf", [True, False])
def test_biases_that_a_loader_would_ignore(to_mf: bool, tmp_path: Path) -> None:
    family = Family("llama")
    hf = {name: array for path in family.hf.glob("*.safetensors") for name, array in load_file(path).items()}
    name = "model.layers.1.self_attn.o_proj.bias" if to_mf else "model.layers.1.attention.wo.bias"
    arrays = hf if to_mf else load_file(family.mf)
    source = Path(reference(family, tmp_path / "source"))
    save_file({**arrays, name: np.zeros(32, next(iter(arrays.values())).dtype)}, source / "model.safetensors")
    with pytest.raises(PlanError) as error:
        make_plan(build_request(source=str(source), target=str(tmp_path / "out"), preset="llama", layout="unified"))
    assert (
        f"parameter {name!r} is read by no loader, since config.json does not set attention_bias: name the "
        "config.json of the model itself with 'config_json'"
    ) in str(error.value)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"exclude": ["decoder.layers.1.*"]}, "parameter 'decoder.layers.1.input_layernorm.weight' is missing from"),
        ({"include": ["decoder.layers.*"]}, "parameter 'embedding.word_embeddings.weight' is missing from"),
    ],
)
def test_what_a_model_needs_is_not_left_out_unnoticed(options: dict[str, Any], missing: str, tmp_path: Path) -> None:
    family = Family("qwen3")
    options |= {"like": reference(family, tmp_path / "like")}
    with pytest.raises(PlanError) as error:
        make_plan(exported(family, tmp_path / "out", **options))
    assert missing in str(error.value)
    assert "in the source: 'include' and 'exclude' leave it out. If the model is to be without, allow it:" in str(
        error.value
    )
    plan = make_plan(exported(family, tmp_path / "out", allow_missing=["*"], **options))
    assert plan.match.resharded


def test_layers_for_multi_token_prediction_may_be_left_out(tmp_path: Path) -> None:
    family = Family("deepseek3_mtp")
    like = reference(family, tmp_path / "like")
    plan = make_plan(exported(family, tmp_path / "out", like=like, exclude=["mtp.*"]))
    assert not [each.name for each in plan.match.resharded if "eh_proj" in each.name]


def test_a_rename_of_a_name_that_a_preset_has_changed(tmp_path: Path) -> None:
    family = Family("qwen3")
    like = reference(family, tmp_path / "like")
    old = "embedding.word_embeddings.weight"
    with pytest.raises(PlanError) as error:
        make_plan(exported(family, tmp_path / "out", like=like, rename=[f"{old}=other"]))
    assert (
        f"the rename of {old!r} matches no parameter: steps, or a preset, come before it and leave "
        "'model.embed_tokens.weight' of that: rename what they leave" in str(error.value)
    )


def test_a_count_of_copies_that_config_json_lacks(tmp_path: Path) -> None:
    family = Family("deepseek3_mtp")
    text = preset_text("deepseek3")
    assert "count: M}" in text
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("count: M}", "count: K}"))
    with pytest.raises(InputError) as error:
        make_plan(exported(family, tmp_path / "out", preset=str(own), like=reference(family, tmp_path / "like")))
    assert "preset deepseek3: copies of 'model.embed_tokens.weight': there is no variable 'K'" in str(error.value)


def test_telechat3_moe_follows_deepseek3() -> None:
    """Its rows are those of deepseek3, with the same variables and switches."""
    original, alike = read_preset("deepseek3"), read_preset("telechat3_moe")
    other = {"preset", "title", "proof", "models", "quantized", "names", "switches", "counted", "loaded"}
    assert alike.model_dump(exclude=other) == original.model_dump(exclude=other)
    assert alike.switches == {name: original.switches[name] for name in alike.switches}
    assert original.switches.keys() - alike.switches.keys() == {"use_gmm"}, "of the older names"
    for world, names in alike.names.items():
        assert list(names.rows) == list(original.names[world].rows)
    # transformers has no telechat3_moe, which is not known to have block-fp8 weights, older names, or further copies of
    # MTP's embedding and head
    assert not original.counted.keys() - alike.counted.keys()
