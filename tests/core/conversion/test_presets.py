"""Models of each family, from Hugging Face's directories to MindFormers' ranks and back, by presets."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from reshard import load_rank
from reshard.core.changes.preset import preset_text
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError, ReshardError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import read_safetensors, read_tree
from tests.support.families import ALL_FAMILIES, Family, directory_contents, exported, sharded, switches_of

QWEN3, MOE, DEEPSEEK, MTP = map(Family, ("qwen3", "qwen3_moe", "deepseek3", "deepseek3_mtp"))
LLAMA, QWEN2, MIXTRAL = map(Family, ("llama", "qwen2", "mixtral"))
TO_HF = [family for family in ALL_FAMILIES if "mf_to_hf" in family.case["directions"]]
TO_MF = [family for family in ALL_FAMILIES if "hf_to_mf" in family.case["directions"]]


def export(family: Family, target: Path, **options: Any) -> ConversionRequest:
    return exported(family, target, **({"like": str(family.hf)} | options))


def imported(family: Family, target: Path, **options: Any) -> ConversionRequest:
    defaults: dict[str, Any] = {
        "source": str(family.hf),
        "target": str(target),
        "format": "safetensors",
        "preset": family.case["preset"],
        "switch": switches_of(family, to_mf=True),
    }
    return build_request(**(defaults | options))


def refusal(request: ConversionRequest, kind: type[ReshardError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        make_plan(request)
    return str(caught.value)


@pytest.mark.parametrize("family", TO_HF, ids=str)
def test_from_ranks_to_hugging_face(family: Family, tmp_path: Path) -> None:
    """Names, dtypes, shapes and bytes are those that transformers wrote, from shards as from the whole."""
    made = sharded(family, tmp_path / "mf")
    source = {"source": str(made.source), "source_strategy": str(made.strategy)}
    report = convert(export(family, tmp_path / "out", **source, verify="content"))
    assert report.committed
    assert directory_contents(tmp_path / "out") == directory_contents(family.hf)
    convert(export(family, tmp_path / "whole", verify="content"))
    assert directory_contents(tmp_path / "whole") == directory_contents(family.hf)
    comparison = compare(family, made.source, tmp_path / "out", strategy_a=str(made.strategy))
    assert comparison.same, comparison


@pytest.mark.parametrize("family", TO_MF, ids=str)
def test_from_hugging_face_to_ranks(family: Family, tmp_path: Path) -> None:
    made = sharded(family, tmp_path / "mf")
    strategy = {"target_strategy": str(made.strategy), "switch": switches_of(family)}
    convert(imported(family, tmp_path / "out", **strategy, verify="content"))
    assert read_tree(tmp_path / "out") == read_tree(made.source)
    convert(imported(family, tmp_path / "whole", verify="content"))
    assert read_safetensors(tmp_path / "whole/rank_0/checkpoint_0.safetensors") == read_safetensors(family.mf)


def compare(family: Family, a: Path, b: Path, **options: Any) -> Any:
    defaults: dict[str, Any] = {"preset": family.case["preset"], "switch": switches_of(family)}
    return compare_checkpoints(build_comparison(a=str(a), b=str(b), **(defaults | options)))


def whole_source(family: Family, directory: Path, **tensors: np.ndarray) -> Path:
    """A directory with MindFormers' weights, the model's config.json, and further tensors."""
    directory.mkdir()
    shutil.copy(family.hf / "config.json", directory)
    save_file({**load_file(family.mf), **tensors}, directory / "model.safetensors")
    return directory


def test_moments_follow_their_weights(tmp_path: Path) -> None:
    weights = load_file(QWEN3.mf)
    moments = {f"adam_m.{name}": (array.astype(np.float32) + 1) for name, array in weights.items()}
    source = whole_source(QWEN3, tmp_path / "source", **moments, global_step=np.array([7]))
    convert(export(QWEN3, tmp_path / "out", source=str(source), like="", verify="content"))
    found = load_file(tmp_path / "out/model.safetensors")
    assert found.pop("global_step") == [7]
    expected = load_file(QWEN3.hf / "model.safetensors")
    assert found.keys() == expected.keys() | {f"adam_m.{name}" for name in expected}
    for name, array in expected.items():
        assert np.array_equal(found[f"adam_m.{name}"], array.astype(np.float32) + 1)
    back = {"source": str(tmp_path / "out"), "switch": switches_of(QWEN3)}
    shutil.copy(QWEN3.hf / "config.json", tmp_path / "out")
    convert(imported(QWEN3, tmp_path / "back", **back))
    assert read_safetensors(tmp_path / "back/rank_0/checkpoint_0.safetensors") == read_safetensors(
        source / "model.safetensors"
    )
    convert(export(QWEN3, tmp_path / "weights", source=str(source), select="weights-only"))
    assert directory_contents(tmp_path / "weights") == directory_contents(QWEN3.hf)


@pytest.mark.parametrize("family", [DEEPSEEK, QWEN3], ids=["deepseek3", "qwen3"])
def test_block_fp8_of_the_hub_becomes_bfloat16(family: Family, tmp_path: Path) -> None:
    scaled = Path(shutil.copytree(family.hf, tmp_path / "scaled"))
    plain = Path(shutil.copytree(family.hf, tmp_path / "plain"))
    tensors = load_file(scaled / "model.safetensors")
    dequantized = dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        quantized = tensors[name].astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
        scale = np.full([-(-length // 128) for length in quantized.shape], 0.25 + 1 / 3, np.float32)
        dequantized[name] = (quantized.astype(np.float32) * scale[0, 0]).astype(ml_dtypes.bfloat16)
        tensors[name], tensors[f"{name}_scale_inv"] = quantized, scale
    save_file(tensors, scaled / "model.safetensors")
    save_file(dequantized, plain / "model.safetensors")
    convert(imported(family, tmp_path / "one", source=str(scaled)))
    convert(imported(family, tmp_path / "other", source=str(plain)))
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "other")
    # and as a reference: what is written is never fp8
    config = json.loads((scaled / "config.json").read_text())
    (scaled / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    back = tmp_path / "one/rank_0/checkpoint_0.safetensors"
    convert(export(family, tmp_path / "back", source=str(back), like=str(scaled)))
    assert directory_contents(tmp_path / "back") == directory_contents(plain)
    assert json.loads((tmp_path / "back/config.json").read_text()) == config


def test_experts_with_three_axes(tmp_path: Path) -> None:
    """The bytes are those of two: only the shape is another."""
    options = {"switch": [*switches_of(MOE), "experts_axes=3"]}
    convert(imported(Family("qwen3_moe_3d"), tmp_path / "out", **options))
    found = read_safetensors(tmp_path / "out/rank_0/checkpoint_0.safetensors")
    assert found == read_safetensors(Family("qwen3_moe_3d").mf)


@pytest.mark.parametrize(("name", "layer"), [("qwen3", "decoder.layers.1."), ("llama", "model.layers.1.")])
def test_layers_beyond_those_that_config_json_counts_are_refused(name: str, layer: str, tmp_path: Path) -> None:
    """A loader that follows it would ignore them."""
    family = Family(name)
    directory = tmp_path / "hf"
    shutil.copytree(family.hf, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    said = r"is of layer 1, and config.json counts 1 layers from 0 on \(num_hidden_layers\): name the config.json"
    with pytest.raises(PlanError, match=rf"parameter 'model.layers.1.input_layernorm.weight' {said}"):
        convert(imported(family, tmp_path / "out", source=str(directory)))
    for weights in directory.glob("*.safetensors*"):
        weights.unlink()
    with pytest.raises(PlanError, match=rf"parameter '{layer}\S+' {said}"):
        convert(export(family, tmp_path / "out", like=str(directory)))
    assert not (tmp_path / "out").exists()


def test_the_targets_strategy_shows_how_many_axes_experts_have(tmp_path: Path) -> None:
    family = Family("qwen3_moe_3d")
    made = sharded(family, tmp_path / "mf")
    convert(imported(family, tmp_path / "out", target_strategy=str(made.strategy)))
    assert read_tree(tmp_path / "out") == read_tree(made.source)


def test_norms_that_no_strategy_knows(tmp_path: Path) -> None:
    """Strategies of some trainings have matrices only; the rest is whole on every rank."""
    made = sharded(DEEPSEEK, tmp_path / "mf")
    strategy = read_strategy(str(made.strategy))
    stages = tuple(
        replace(stage, layouts={name: layout for name, layout in stage.layouts.items() if "norm" not in name})
        for stage in strategy.stages
    )
    path = str(tmp_path / "matrices.ckpt")
    write_strategy(replace(strategy, stages=stages), path)
    convert(export(DEEPSEEK, tmp_path / "out", source=str(made.source), source_strategy=path, verify="content"))
    assert directory_contents(tmp_path / "out") == directory_contents(DEEPSEEK.hf)


def test_a_rank_is_loaded_without_files(tmp_path: Path) -> None:
    made = sharded(QWEN3, tmp_path / "mf")
    options: Any = {"preset": "qwen3", "switch": switches_of(QWEN3), "target_strategy": str(made.strategy)}
    loaded: dict[str, Any] = dict(load_rank(str(QWEN3.hf), rank=1, **options))
    expected = read_tree(made.source)[1]
    assert {name: (value.shape, value.tobytes()) for name, value in loaded.items()} == {
        name: (shape, content) for name, (_, shape, content) in expected.items()
    }


def test_the_dialect_of_the_reference_decides(tmp_path: Path) -> None:
    fused = Family("qwen3_moe_fused")
    convert(export(fused, tmp_path / "out"))
    assert directory_contents(tmp_path / "out") == directory_contents(fused.hf)


def test_q_and_kv_down_in_one(tmp_path: Path) -> None:
    switch = [*switches_of(MTP), "mla_qkv_concat=true"]
    convert(imported(MTP, tmp_path / "mf", switch=switch))
    source = tmp_path / "mf/rank_0/checkpoint_0.safetensors"
    names = read_safetensors(source).keys()
    assert "decoder.layers.0.self_attention.linear_qkv.weight" in names
    assert not any("down_proj" in name for name in names)
    convert(export(MTP, tmp_path / "back", source=str(source)))
    assert directory_contents(tmp_path / "back") == directory_contents(MTP.hf)


def test_legacy_names_with_fused_weights(tmp_path: Path) -> None:
    for family, switch in ((LLAMA, ["qkv_grouped=true"]), (QWEN2, ["qkv_grouped=true", "bias_groups=true"])):
        convert(imported(family, tmp_path / f"{family}", switch=["qkv_concat=true", *switch]))
        source = tmp_path / f"{family}/rank_0/checkpoint_0.safetensors"
        names = read_safetensors(source).keys()
        assert {"model.layers.0.attention.w_qkv.weight", "model.layers.1.feed_forward.w_gate_hidden.weight"} <= names
        convert(export(family, tmp_path / f"{family}_back", source=str(source), switch=switch))
        assert directory_contents(tmp_path / f"{family}_back") == directory_contents(family.hf)


def test_fused_weights_are_laid_out_as_the_rules_say(tmp_path: Path) -> None:
    """G: for each group its q, k and v. I: a row of gate, a row of up."""
    convert(imported(LLAMA, tmp_path / "mf", switch=["qkv_concat=true", "qkv_grouped=true"], cast=["*=float32"]))
    found = load_file(tmp_path / "mf/rank_0/checkpoint_0.safetensors")
    hf: dict[str, np.ndarray] = {}
    for path in LLAMA.hf.glob("*.safetensors"):
        hf |= load_file(path)
    q, k, v = (hf[f"model.layers.0.self_attn.{each}_proj.weight"].astype(np.float32) for each in "qkv")
    groups = [np.concatenate([q[16 * g : 16 * g + 16], k[8 * g : 8 * g + 8], v[8 * g : 8 * g + 8]]) for g in (0, 1)]
    assert np.array_equal(found["model.layers.0.attention.w_qkv.weight"], np.concatenate(groups))
    gate, up = (hf[f"model.layers.0.mlp.{each}_proj.weight"].astype(np.float32) for each in ("gate", "up"))
    hidden = found["model.layers.0.feed_forward.w_gate_hidden.weight"]
    assert np.array_equal(hidden[0::2], gate)
    assert np.array_equal(hidden[1::2], up)


def test_the_routers_bias_is_never_cast_along(tmp_path: Path) -> None:
    convert(
        export(
            DEEPSEEK, tmp_path / "out", cast=["*=float16"], like="", source=str(whole_source(DEEPSEEK, tmp_path / "mf"))
        )
    )
    dtypes = {name: array.dtype for name, array in load_file(tmp_path / "out/model.safetensors").items()}
    assert {dtype for name, dtype in dtypes.items() if "e_score" not in name} == {np.dtype(np.float16)}
    assert {dtype for name, dtype in dtypes.items() if "e_score" in name} == {np.dtype(np.float32)}


WRONG_SWITCHES = [
    (QWEN3, "use_interleaved_weight_layout_mlp=false", "diff"),
    (QWEN3, "use_contiguous_weight_layout_attention=true", "diff"),
    (DEEPSEEK, "use_interleaved_weight_layout_mlp=false", "diff"),
    (MIXTRAL, "use_gmm=true", "shape"),
    (MOE, "experts_axes=3", "shown"),
    (DEEPSEEK, "mla_qkv_concat=true", "shown"),
    (LLAMA, "qkv_concat=true", "shown"),
]


@pytest.mark.parametrize(("family", "wrong", "found"), WRONG_SWITCHES, ids=str)
def test_a_wrong_switch_is_found(family: Family, wrong: str, found: str, tmp_path: Path) -> None:
    """By names and shapes before anything is written, or by `reshard diff` with what the training began with."""
    name = wrong.partition("=")[0]
    switch = [each for each in switches_of(family) if not each.startswith(name)] + [wrong]
    request = export(family, tmp_path / "out", switch=switch)
    if found == "diff":
        convert(request)
        assert not compare(family, family.mf, tmp_path / "out").same
        assert not compare(family, family.mf, family.hf, switch=switch).same
        assert compare(family, family.mf, family.hf).same
    else:
        kinds = {"shape": "by config.json it would be", "shown": "the names and axes show that it is"}
        assert kinds[found] in refusal(request)


def test_switches_that_a_checkpoint_does_not_show_are_asked_for(tmp_path: Path) -> None:
    assert refusal(export(QWEN3, tmp_path / "out", switch=switches_of(QWEN3)[1:])) == (
        "preset qwen3: a checkpoint does not show how linear_fc1 is laid out. Name the training's YAML with "
        "'training_config', or say switch=['use_interleaved_weight_layout_mlp=true'] (a row of gate, a row of up, "
        "and so on; the default of MindFormers 1.7 and later) or switch=['use_interleaved_weight_layout_mlp=false'] "
        "(all rows of gate, then all of up; the default of MindFormers 1.6)"
    )


def training_yaml(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "training.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_the_trainings_configuration_answers(tmp_path: Path) -> None:
    inner = {"use_interleaved_weight_layout_mlp": False, "num_layers": 2}
    config = training_yaml(tmp_path, {"model": {"model_config": inner}, "callbacks": [{"type": "MFLossMonitor"}]})
    request = export(QWEN3, tmp_path / "out", switch=[], training_config=config)
    notes = convert(request).notes
    assert (
        "preset qwen3: MindFormers to Hugging Face (mcore names, use_contiguous_weight_layout_attention false, "
        "use_interleaved_weight_layout_mlp false)" in notes
    )
    contiguous = "use_contiguous_weight_layout_attention"
    default = "the default of MindFormers 1.7 and later is false"
    assert f"the training's configuration does not say {contiguous}: {default}" in notes
    assert directory_contents(tmp_path / "out") != directory_contents(QWEN3.hf)


def test_a_configuration_that_contradicts_itself(tmp_path: Path) -> None:
    name = "use_interleaved_weight_layout_mlp"
    config = training_yaml(tmp_path, {"a": {name: True}, "b": {name: False}})
    text = refusal(export(QWEN3, tmp_path / "out", switch=[], training_config=config))
    assert f"has {name} as true and as false: say which value counts with switch=['{name}=VALUE']" in text
    assert make_plan(export(QWEN3, tmp_path / "out", switch=[f"{name}=true"], training_config=config)).match.resharded
    for value, shown in (("maybe", "maybe"), (None, "null")):
        config = training_yaml(tmp_path, {"a": {name: value}})
        text = refusal(export(QWEN3, tmp_path / "out", switch=[], training_config=config))
        assert f"training.yaml: says {name}: {shown}, not true or false" in text


@pytest.mark.parametrize(
    ("switch", "problem"),
    [
        (["qkv=true"], "preset qwen3 has no switch 'qkv': it has use_interleaved_weight_layout_mlp"),
        (["use_contiguous_weight_layout_attention=2"], "must be one of true, false"),
    ],
)
def test_switches_that_do_not_exist(switch: list[str], problem: str, tmp_path: Path) -> None:
    assert problem in refusal(export(QWEN3, tmp_path / "out", switch=switch))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"preset": "bloom"}, "there is no preset 'bloom'. There are baichuan, chatglm, deepseek3, deepseek_v32"),
        (
            {"preset": "llama", "switch": [], "allow_model": ["qwen3"]},
            "preset llama: the source has names that its megatron rows have, but MindFormers lays out otherwise: name",
        ),
        ({"preset": "", "allow_model": ["qwen3"]}, "only valid with 'preset'"),
        (
            {"like": "", "layout": "ranks"},
            "has none: put the model's there, or name it with 'config_json'",
        ),
        ({"preset": "", "switch": ["a=b"]}, "only valid with 'preset'"),
        ({"switch": ["a"]}, "'a' must be NAME=VALUE"),
    ],
)
def test_requests_that_cannot_be_carried_out(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        make_plan(export(QWEN3, tmp_path / "out", **options))
    assert problem in str(caught.value)


def test_names_that_no_row_has(tmp_path: Path) -> None:
    source = whole_source(QWEN3, tmp_path / "mf", **{"decoder.layers.0.mlp.extra.weight": np.zeros(3, np.float32)})
    text = refusal(export(QWEN3, tmp_path / "out", source=str(source)), PlanError)
    assert (
        "parameter 'decoder.layers.0.mlp.extra.weight' is in no row of the preset, and may be a weight: name the "
        "preset of its family, or add a row to a copy of this one (reshard presets qwen3)" in text
    )
    options = {"source": str(source), "exclude": ["*.extra.*"]}
    assert convert(export(QWEN3, tmp_path / "out", **options)).committed


def without(family: Family, directory: Path, *names: str) -> str:
    tensors = load_file(family.mf)
    directory.mkdir()
    save_file({name: array for name, array in tensors.items() if name not in names}, directory / "model.safetensors")
    return str(directory)


def test_names_that_a_layer_lacks(tmp_path: Path) -> None:
    norm = "decoder.layers.1.pre_mlp_layernorm.weight"
    source = without(QWEN3, tmp_path / "mf", norm)
    assert f"parameter {norm!r} is missing" in refusal(export(QWEN3, tmp_path / "out", source=source), PlanError)
    weight = "decoder.layers.1.mlp.experts.weight1"
    text = refusal(export(MOE, tmp_path / "out", source=without(MOE, tmp_path / "moe", weight)), PlanError)
    assert f"parameter {weight!r} is missing" in text


def test_a_layer_that_is_missing(tmp_path: Path) -> None:
    names = [name for name in load_file(QWEN3.mf) if ".layers.1." in name]
    text = refusal(export(QWEN3, tmp_path / "out", source=without(QWEN3, tmp_path / "mf", *names)), PlanError)
    assert "parameter 'decoder.layers.1.input_layernorm.weight' is missing" in text


def test_a_configuration_of_another_model(tmp_path: Path) -> None:
    reference = Path(shutil.copytree(QWEN3.hf, tmp_path / "reference"))
    path = reference / "config.json"
    (reference / "model.safetensors").unlink()
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"num_attention_heads": config["num_attention_heads"] * 2}))
    assert refusal(export(QWEN3, tmp_path / "out", like=str(reference)))
    path.write_text(json.dumps(config | {"vocab_size": 999}))
    text = refusal(export(QWEN3, tmp_path / "out", like=str(reference)), PlanError)
    assert "parameter 'model.embed_tokens.weight' has shape" in text


def test_names_of_both_sides(tmp_path: Path) -> None:
    source = whole_source(QWEN3, tmp_path / "mf", **{"model.layers.0.input_layernorm.weight": np.zeros(3, np.float32)})
    text = refusal(export(QWEN3, tmp_path / "out", source=str(source)))
    assert "the source has names of both sides" in text


def test_a_preset_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(preset_text("qwen3").replace("preset: qwen3", "preset: mine"))
    notes = convert(export(QWEN3, tmp_path / "out", preset=str(path))).notes
    assert directory_contents(tmp_path / "out") == directory_contents(QWEN3.hf)
    assert any(note.startswith("preset mine: MindFormers to Hugging Face") for note in notes)


def test_a_comparison_in_another_dtype(tmp_path: Path) -> None:
    """A training in float32, and its export in bfloat16."""
    source = Family("qwen3_moe_3d")
    convert(export(source, tmp_path / "out", cast=["*=bfloat16"]))
    assert not compare(source, source.mf, tmp_path / "out").same
    assert compare(source, source.mf, tmp_path / "out", ignore_dtype=True).same


def test_a_changed_value_is_found(tmp_path: Path) -> None:
    changed = Path(shutil.copytree(QWEN3.hf, tmp_path / "changed"))
    tensors = load_file(changed / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"][3, 4] += 1
    save_file(tensors, changed / "model.safetensors")
    report = compare(QWEN3, QWEN3.mf, changed)
    assert [difference.name for difference in report.differences] == ["model.layers.1.self_attn.k_proj.weight"]
    back = compare(QWEN3, changed, QWEN3.mf, switch=switches_of(QWEN3))
    assert [difference.name for difference in back.differences] == ["decoder.layers.1.self_attention.linear_qkv.weight"]


def older_layout(family: Family, directory: Path, *, contiguous: bool) -> str:
    """The family's weights as MindFormers 1.6 lays them out: linear_fc1 has all of gate, then all of up."""
    switch = [f"use_contiguous_weight_layout_attention={contiguous}".lower(), "use_interleaved_weight_layout_mlp=false"]
    convert(imported(family, directory, layout="unified", format="same", switch=switch))
    return str(directory)


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_configuration_of_mindformers_1_6_has_its_defaults(contiguous: bool, tmp_path: Path) -> None:
    """It has no interleaved MLP, and another name for the layout of attention."""
    source = older_layout(QWEN3, tmp_path / "mf", contiguous=contiguous)
    inner = {"use_contiguous_weight_layout": contiguous, "qkv_concat": True}
    config = training_yaml(tmp_path, {"model": {"model_config": inner}})
    convert(export(QWEN3, tmp_path / "out", source=source, switch=[], training_config=config))
    assert directory_contents(tmp_path / "out") == directory_contents(QWEN3.hf)


@pytest.mark.parametrize("family", [QWEN3, DEEPSEEK], ids=str)
def test_a_configuration_that_shows_no_version_is_a_question(family: Family, tmp_path: Path) -> None:
    config = training_yaml(tmp_path, {"model": {"model_config": {"qkv_concat": True}}})
    name = "use_interleaved_weight_layout_mlp"
    switch = [each for each in switches_of(family) if not each.startswith(name)]
    text = refusal(export(family, tmp_path / "out", switch=switch, training_config=config))
    assert (
        f"training.yaml: says neither {name} nor anything else that shows MindFormers' version, on which its default "
        f"depends: say switch=['{name}=true'] (" in text
    )
    given = [*switch, f"{name}=true"]
    assert make_plan(export(family, tmp_path / "out", switch=given, training_config=config)).match.resharded


def with_rotary_buffers(family: Family, to: Path) -> Path:
    """A copy of the model with the buffers that older files of Hugging Face's have."""
    copied = Path(shutil.copytree(family.hf, to))
    tensors = load_file(family.hf / "model.safetensors")
    buffers = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32) for layer in range(2)}
    (copied / "model.safetensors").chmod(0o600)
    save_file(tensors | buffers, copied / "model.safetensors", {"format": "pt"})
    return copied


def test_rotary_buffers_of_older_files_are_left_out_and_counted(tmp_path: Path) -> None:
    source = with_rotary_buffers(QWEN3, tmp_path / "source")
    report = convert(imported(QWEN3, tmp_path / "out", source=str(source)))
    assert read_safetensors(tmp_path / "out/rank_0/checkpoint_0.safetensors") == read_safetensors(QWEN3.mf)
    counted = "left out: 2 buffers *rotary_emb.inv_freq, which models compute from config.json"
    assert counted in report.notes
    exported_like = convert(export(QWEN3, tmp_path / "hf", like=str(source)))
    assert f"{source}: {counted}" in exported_like.notes
    assert directory_contents(tmp_path / "hf") == directory_contents(QWEN3.hf)
    for one, other in ((source, QWEN3.mf), (QWEN3.mf, source)):
        comparison = compare(QWEN3, one, other)
        assert comparison.same, comparison
        assert counted in (*comparison.a.notes, *comparison.b.notes)
