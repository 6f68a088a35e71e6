"""LoRA adapters in other names than those of the base: merged after a preset's steps, held against numpy."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard import load_rank
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from reshard.core.verification.published import verify_target
from tests.core.conversion.test_family_rules import CASES, FUSED, Case
from tests.core.conversion.test_lora import chain
from tests.core.conversion.test_megatron_names import EXPERTS, FROM, NORMS, model_of
from tests.support.checkpoints import read_tree
from tests.support.families import ALL_FAMILIES, Family, directory_contents, exported, sharded, switches_of
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays
from tests.support.written_models import fused, written

MTP = Family("deepseek3_mtp")
MAY_BE_TIED = "embed", "head", "output_layer"
RANK, ALPHA = 4, 6.0
PEFT = ("base_model.model.{}.lora_A.weight", "base_model.model.{}.lora_B.weight")
LIVE = ("{}.lora_A.default.weight", "{}.lora_B.default.weight")
"""As PEFT has them around the modules of a training, such as Megatron's."""
MINDPET = ("{}.mindpet_delta_lora_a", "{}.mindpet_delta_lora_b")
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}


def matrices(weights: Arrays) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Random A and B for each matrix that is a module's weight, but for those that may be tied."""
    generator = np.random.default_rng(len(weights))
    found = {}
    for name, weight in weights.items():
        if weight.ndim == 2 and name.endswith(".weight") and not any(each in name for each in MAY_BE_TIED):
            rows, columns = weight.shape
            sizes = (RANK, columns), (rows, RANK)
            a, b = (generator.normal(0, 0.3, size).astype(np.float32) for size in sizes)
            found[name.removesuffix(".weight")] = a, b
    return found


def merged(weights: Arrays) -> Arrays:
    found = dict(weights)
    for module, (a, b) in matrices(weights).items():
        weight = weights[f"{module}.weight"]
        added = chain(b, a) * np.float32(ALPHA / RANK)
        found[f"{module}.weight"] = (weight.astype(np.float32) + added).astype(weight.dtype)
    return found


def adapter(directory: Path, weights: Arrays, names: tuple[str, str], **config: Any) -> Path:
    directory.mkdir()
    tensors: Arrays = {}
    for module, pair in matrices(weights).items():
        tensors |= {name.format(module): each for name, each in zip(names, pair, strict=True)}
    save_file(tensors, directory / "adapter_model.safetensors")
    if names == PEFT:
        (directory / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return directory


def contents(directory: Path, weights: Arrays) -> Any:
    return directory_contents(written(directory, weights))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_sides_adapter_is_merged_into_what_the_preset_makes(case: Case, tmp_path: Path) -> None:
    model = case.model()
    hf, rules = written(tmp_path / "hf", model.hf, model.config), case.rules(model)
    mf = written(tmp_path / "mf", rules)
    preset = {"preset": case.preset, "allow_model": [model.config.get("model_type", "")]}
    options: dict[str, Any] = {**preset, "layout": "unified", "verify": "content"}
    peft = {"lora": str(adapter(tmp_path / "peft", model.hf, PEFT))}
    switch = list(case.switch)
    to_hf = {"source": str(mf), "like": str(hf), "switch": switch}
    report = convert(build_request(target=str(tmp_path / "to_hf"), **to_hf, **peft, **options))
    assert directory_contents(tmp_path / "to_hf") == contents(tmp_path / "merged_hf", merged(model.hf))
    assert not verify_target(str(tmp_path / "to_hf"), VerifyLevel.CONTENT).problems
    is_known_by_names = bool(matrices(model.hf).keys() - matrices(rules).keys())
    assert any("by the target's names" in note for note in report.notes) == is_known_by_names
    mindpet = {"lora": str(adapter(tmp_path / "mindpet", rules, MINDPET)), "lora_alpha": ALPHA}
    to_mf = {"source": str(hf), "switch": [*case.switch, *case.asked]}
    convert(build_request(target=str(tmp_path / "to_mf"), **to_mf, **mindpet, **options))
    assert directory_contents(tmp_path / "to_mf") == contents(tmp_path / "merged_mf", merged(rules))
    comparison = {"a": str(mf), "b": str(tmp_path / "to_hf"), "switch": switch, **preset}
    assert compare_checkpoints(build_comparison(**comparison, **peft)).same
    assert not compare_checkpoints(build_comparison(**comparison)).same


MEGATRON = [
    *((name, "sequential", norms) for name in ("qwen3", "llama") for norms in NORMS),
    *((name, experts, NORMS[0]) for name in ("qwen3_moe", "mixtral", "deepseek3") for experts in EXPERTS),
]


@pytest.mark.parametrize(("name", "experts", "norms"), MEGATRON)
def test_peft_of_a_base_of_megatrons(name: str, experts: str, norms: str, tmp_path: Path) -> None:
    model = model_of(name)
    hf = model.directory(tmp_path / "hf")
    base = written(tmp_path / "megatron", megatron(model.hf, model.config, experts, norms))
    lora = adapter(tmp_path / "peft", model.hf, PEFT)
    options: dict[str, Any] = {"preset": model.preset, "layout": "unified", "verify": "content", "like": str(hf)}
    given = {"source": str(base), "lora": str(lora), "switch": [FROM]}
    convert(build_request(target=str(tmp_path / "out"), **given, **options))
    assert directory_contents(tmp_path / "out") == contents(tmp_path / "merged", merged(model.hf))


@pytest.mark.parametrize(("name", "experts", "norms"), MEGATRON[::3])
def test_megatrons_adapter_on_the_way_from_and_to_its_names(
    name: str, experts: str, norms: str, tmp_path: Path
) -> None:
    """Its matrices are those of fused weights: B has rows of q, k and v in turn, or of gate and up."""
    model = model_of(name)
    hf = model.directory(tmp_path / "hf")
    rules = megatron(model.hf, model.config, experts, norms)
    base = written(tmp_path / "megatron", rules)
    given = {"lora": str(adapter(tmp_path / "live", rules, LIVE)), "lora_alpha": ALPHA}
    options: dict[str, Any] = {"preset": model.preset, "layout": "unified", "verify": "content"}
    convert(
        build_request(source=str(base), target=str(tmp_path / "out"), like=str(hf), switch=[FROM], **given, **options)
    )
    then = {"source": str(written(tmp_path / "then", merged(rules))), "like": str(hf), "switch": [FROM]}
    convert(build_request(target=str(tmp_path / "hf_then"), **then, **options))
    assert directory_contents(tmp_path / "out") == directory_contents(tmp_path / "hf_then")
    assert directory_contents(tmp_path / "out") != directory_contents(hf)


def whole(family: Family) -> Arrays:
    found: Arrays = {}
    for path in family.hf.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("family", [each for each in ALL_FAMILIES if "mf_to_hf" in each.case["directions"]], ids=str)
def test_peft_of_a_base_on_ranks(family: Family, tmp_path: Path) -> None:
    """And the bytes are those of a conversion without the adapter, which is merged then."""
    made = sharded(family, tmp_path / "mf")
    lora = str(adapter(tmp_path / "peft", whole(family), PEFT))
    source = {"source": str(made.source), "source_strategy": str(made.strategy), "like": str(family.hf)}
    convert(exported(family, tmp_path / "out", **source, lora=lora, verify="content", memory_limit="64MiB"))
    assert directory_contents(tmp_path / "out") == contents(tmp_path / "merged", merged(whole(family)))
    convert(exported(family, tmp_path / "plain", **source))
    convert(build_request(source=str(tmp_path / "plain"), target=str(tmp_path / "then"), layout="unified", lora=lora))
    assert directory_contents(tmp_path / "then") == directory_contents(tmp_path / "out")


DIALECTS = [case for case in FUSED if case.preset != "mixtral"]


@pytest.mark.parametrize("case", DIALECTS, ids=str)
def test_peft_of_the_hubs_names_on_the_way_to_the_fused_dialect(case: Case, tmp_path: Path) -> None:
    """Experts have a matrix each in the adapter, and are one tensor in the target."""
    model = case.model()
    hf = written(tmp_path / "hf", fused(model.hf), model.config)
    mf = written(tmp_path / "mf", case.rules(model))
    options: dict[str, Any] = {"preset": case.preset, "layout": "unified", "verify": "content", "like": str(hf)}
    lora = str(adapter(tmp_path / "peft", model.hf, PEFT))
    convert(build_request(source=str(mf), target=str(tmp_path / "out"), switch=[*case.switch], lora=lora, **options))
    wanted = contents(tmp_path / "merged", fused(merged(model.hf)))
    assert directory_contents(tmp_path / "out") == wanted
    attention = {name: each for name, each in model.hf.items() if "o_proj" in name}
    lora = str(adapter(tmp_path / "of_both", attention, PEFT))
    convert(build_request(source=str(mf), target=str(tmp_path / "both"), switch=[*case.switch], lora=lora, **options))
    wanted = contents(tmp_path / "o_proj", fused(model.hf | merged(attention)))
    assert directory_contents(tmp_path / "both") == wanted
    rules = case.rules(model)
    mindpet = {"lora": str(adapter(tmp_path / "mindpet", rules, MINDPET)), "lora_alpha": ALPHA}
    there = {"source": str(hf), "switch": [*case.switch, *case.asked]}
    del options["like"]
    convert(build_request(target=str(tmp_path / "to_mf"), **there, **mindpet, **options))
    assert directory_contents(tmp_path / "to_mf") == contents(tmp_path / "merged_mf", merged(rules))


def test_peft_between_two_other_worlds(tmp_path: Path) -> None:
    """From Megatron's names to MindFormers', by those of Hugging Face's in between."""
    model = model_of("qwen3")
    hf = model.directory(tmp_path / "hf")
    base = written(tmp_path / "megatron", megatron(model.hf, model.config, "sequential", "separate"))
    options: dict[str, Any] = {"preset": "qwen3", "layout": "unified", "config_json": str(hf)}
    mcore = ["use_interleaved_weight_layout_mlp=true", "use_contiguous_weight_layout_attention=false"]
    between = {"source": str(base), "names": "mcore", "switch": [FROM, *mcore]}
    lora = str(adapter(tmp_path / "peft", model.hf, PEFT))
    report = convert(build_request(target=str(tmp_path / "out"), lora=lora, verify="content", **between, **options))
    assert any("by Hugging Face's names" in note for note in report.notes)
    then = written(tmp_path / "then", merged(model.hf))
    convert(build_request(source=str(then), target=str(tmp_path / "mf"), switch=mcore, **options))
    assert directory_contents(tmp_path / "out") == directory_contents(tmp_path / "mf")


LLAMA = "model.layers.0.self_attn.q_proj"


def llama(directory: Path, lora: Arrays, *, prefix: str = "base_model.model.", **options: Any) -> None:
    """Export llama's fused weights with an adapter of some tensors."""
    family = Family("llama")
    directory.mkdir(exist_ok=True)
    fused_weights = {"preset": "llama", "layout": "unified", "switch": ["qkv_concat=true", "qkv_grouped=true"]}
    convert(build_request(source=str(family.hf), target=str(directory / "mf"), **fused_weights))
    place = directory / "lora"
    place.mkdir()
    save_file({f"{prefix}{name}": each for name, each in lora.items()}, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps(CONFIG | options))
    export = {"source": str(directory / "mf"), "like": str(family.hf), "lora": str(place), "preset": "llama"}
    request = build_request(
        target=str(directory / "out"), layout="unified", switch=["qkv_grouped=true"], verify="content", **export
    )
    convert(request)


def pair(module: str, rows: int = 32, columns: int = 32) -> Arrays:
    a, b = np.ones((RANK, columns), np.float32), np.ones((rows, RANK), np.float32)
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}


def peft(*modules: str) -> Arrays:
    return {f"base_model.model.{name}": each for module in modules for name, each in pair(module).items()}


def test_a_weight_of_one_part_of_a_fused_one_is_replaced(tmp_path: Path) -> None:
    weights = whole(Family("llama"))
    replacing = np.random.default_rng(1).normal(size=weights[f"{LLAMA}.weight"].shape).astype(np.float32)
    llama(
        tmp_path, pair("model.layers.0.self_attn.o_proj") | {f"{LLAMA}.weight": replacing}, modules_to_save=["q_proj"]
    )
    found = load_file(tmp_path / "out/model.safetensors")
    kind = weights[f"{LLAMA}.weight"].dtype
    assert found[f"{LLAMA}.weight"].tobytes() == replacing.astype(kind).tobytes()
    other = f"{LLAMA}.weight".replace("q_proj", "k_proj")
    assert found[other].tobytes() == weights[other].tobytes()


@pytest.mark.parametrize(
    ("lora", "problem"),
    [
        (
            pair("model.layers.0.q"),
            (
                "of the 1 parameter that it changes, 0 are among the source's names, which lack "
                "'model.layers.0.q.weight'; 0 are among the target's names, which lack 'model.layers.0.q.weight'. The "
                "adapter is of another model, or has other names than there are on the way from the source to"
            ),
        ),
        (
            pair(LLAMA) | pair("model.layers.0.attention.wo"),
            (
                "of the 2 parameters that it changes, 1 are among the source's names, which lack "
                "'model.layers.0.self_attn.q_proj.weight'; 1 are among the target's names"
            ),
        ),
        (pair(LLAMA, 64), "has shape [32, 32], and the adapter is for [64, 32]"),
    ],
    ids=["no side's", "of both sides", "shape"],
)
def test_adapters_that_do_not_fit(lora: Arrays, problem: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as raised:
        llama(tmp_path, lora)
    assert problem in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_names_of_both_sides_are_never_guessed(tmp_path: Path) -> None:
    """Megatron's and MindFormers' names are the same where their rows lie otherwise."""
    model = model_of("qwen3")
    hf = model.directory(tmp_path / "hf")
    weights = megatron(model.hf, model.config, "sequential", "separate")
    base = written(tmp_path / "megatron", weights)
    mcore = ["use_interleaved_weight_layout_mlp=true", "use_contiguous_weight_layout_attention=true"]
    between: dict[str, Any] = {"names": "mcore", "switch": [FROM, *mcore], "config_json": str(hf)}
    lora = str(adapter(tmp_path / "lora", weights, PEFT))
    request = build_request(
        source=str(base), target=str(tmp_path / "out"), layout="unified", preset="qwen3", lora=lora, **between
    )
    with pytest.raises(PlanError, match="among the source's and the target's names, so names do not tell into which"):
        convert(request)


def with_heads(directory: Path, source: Path, head: str, **options: Any) -> str:
    """Why an adapter of the head of a model with layers for multi-token prediction is refused."""
    directory.mkdir()
    rows, columns = whole(MTP)["lm_head.weight"].shape
    save_file(pair(head, rows, columns), directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG))
    given = {"preset": "deepseek3", "layout": "unified", "lora": str(directory), "target": str(directory / "out")}
    with pytest.raises(PlanError) as raised:
        convert(build_request(source=str(source), **given, **options))
    return str(raised.value)


def test_a_head_that_is_another_ones_copy(tmp_path: Path) -> None:
    """Hugging Face has the head of MTP layers once more, and MindFormers does not."""
    interleaved = "use_interleaved_weight_layout_mlp=true"
    text = with_heads(tmp_path / "to_hf", MTP.mf, "lm_head", like=str(MTP.hf), switch=[interleaved])
    assert "parts of 'output_layer.weight' become parts of several parameters, or of one several times" in text
    switch = [interleaved, "mla_qkv_concat=false"]
    text = with_heads(tmp_path / "to_mf", MTP.hf, "output_layer", switch=switch)
    assert "can only be compared as the source has them: convert first, then merge the adapter" in text


def test_dequantized_weights_are_not_adapted(tmp_path: Path) -> None:
    arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in whole(MTP).items()}
    name = "model.layers.0.mlp.gate_proj"
    shape = arrays[f"{name}.weight"].shape
    arrays[f"{name}.weight"] = np.zeros(shape, ml_dtypes.float8_e4m3fn)
    arrays[f"{name}.weight_scale_inv"] = np.ones([-(-length // 128) for length in shape], np.float32)
    config = json.loads((MTP.hf / "config.json").read_text())
    source = written(tmp_path / "hf", arrays, config)
    place = tmp_path / "lora"
    place.mkdir()
    module = "decoder.layers.0.mlp.linear_fc1"
    save_file(pair(module, 2 * shape[0], shape[1]), place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps(CONFIG))
    given = {"preset": "deepseek3", "layout": "unified", "lora": str(place), "target": str(tmp_path / "out")}
    switch = ["use_interleaved_weight_layout_mlp=true", "mla_qkv_concat=false"]
    with pytest.raises(PlanError, match="is dequantized on the way: convert without 'lora' first, then merge"):
        convert(build_request(source=str(source), switch=switch, **given))


@pytest.mark.parametrize("family", [each for each in ALL_FAMILIES if "hf_to_mf" in each.case["directions"]], ids=str)
def test_a_mindformers_adapter_on_the_way_to_ranks(family: Family, tmp_path: Path) -> None:
    made, rules = sharded(family, tmp_path / "mf"), load_file(family.mf)
    lora = {
        "lora": str(adapter(tmp_path / "lora", rules, MINDPET)),
        "lora_alpha": ALPHA,
        "preset": family.case["preset"],
    }
    common: dict[str, Any] = {"target_strategy": str(made.strategy), "format": "safetensors"}
    source = {"source": str(family.hf), "switch": switches_of(family)}
    convert(build_request(target=str(tmp_path / "out"), verify="content", **source, **lora, **common))
    whole_one = written(tmp_path / "whole", merged(rules))
    convert(build_request(source=str(whole_one), target=str(tmp_path / "wanted"), **common))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "wanted")


def test_base_and_adapters_of_mindformers_in_one_checkpoint(tmp_path: Path) -> None:
    """The source is its own adapter: in its own names, before the preset."""
    family = Family("qwen3")
    rules = load_file(family.mf)
    names = ("{}.lora_a", "{}.lora_b")
    lora = {
        name.format(module): each
        for module, both in matrices(rules).items()
        for name, each in zip(names, both, strict=True)
    }
    source = str(written(tmp_path / "source", rules | lora))
    convert(exported(family, tmp_path / "out", source=source, lora=source, lora_alpha=6, like=str(family.hf)))
    then = str(written(tmp_path / "then", merged(rules)))
    convert(exported(family, tmp_path / "wanted", source=then, like=str(family.hf)))
    assert directory_contents(tmp_path / "out") == directory_contents(tmp_path / "wanted")


@pytest.mark.parametrize("padding", [0, 6])
def test_embeddings_and_heads(padding: int, tmp_path: Path) -> None:
    """With rows of padding in the source, which Hugging Face does not have, and neither does the adapter."""
    model = model_of("qwen3")
    hf = model.directory(tmp_path / "hf")
    base = megatron(model.hf, model.config, "sequential", "separate")
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        base[name] = np.concatenate([base[name], base[name][:padding]])
    rows, columns = model.hf["lm_head.weight"].shape
    generator = np.random.default_rng(3)
    lora = {
        "model.embed_tokens.lora_embedding_A": generator.normal(size=(RANK, rows)),
        "model.embed_tokens.lora_embedding_B": generator.normal(size=(columns, RANK)),
        "lm_head.lora_A.weight": generator.normal(size=(RANK, columns)),
        "lm_head.lora_B.weight": generator.normal(size=(rows, RANK)),
    }
    place = tmp_path / "lora"
    place.mkdir()
    arrays = {f"base_model.model.{name}": each.astype(np.float32) for name, each in lora.items()}
    save_file(arrays, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps(CONFIG))
    options: dict[str, Any] = {"layout": "unified", "verify": "content", "lora": str(place)}
    export = {"source": str(written(tmp_path / "base", base)), "like": str(hf), "preset": "qwen3", "switch": [FROM]}
    convert(build_request(target=str(tmp_path / "out"), **export, **options))
    convert(build_request(source=str(hf), target=str(tmp_path / "wanted"), **options))
    wanted = directory_contents(tmp_path / "wanted")
    assert directory_contents(tmp_path / "out") == wanted
    before = directory_contents(hf)
    changed = {name for name in wanted if wanted[name] != before[name]}
    assert changed == {"model.embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize("groups", ["true", "false"])
def test_biases_in_a_fused_one(groups: str, tmp_path: Path) -> None:
    family = Family("qwen2")
    generator = np.random.default_rng(4)
    biases = {
        name.replace("q_proj.bias", "q_proj.base_layer.bias"): generator.normal(size=each.shape).astype(np.float32)
        for name, each in whole(family).items()
        if name.endswith(("q_proj.bias", "v_proj.bias"))
    }
    module = "model.layers.1.self_attn.q_proj"
    rows, columns = whole(family)[f"{module}.weight"].shape
    place = tmp_path / "lora"
    place.mkdir()
    lora = {f"base_model.model.{name}": each for name, each in (biases | pair(module, rows, columns)).items()}
    save_file(lora, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps(CONFIG | {"bias": "all"}))
    qkv = ["qkv_grouped=true", f"bias_groups={groups}"]
    options: dict[str, Any] = {"layout": "unified", "verify": "content"}
    there = {"source": str(family.hf), "preset": "qwen2", "switch": ["qkv_concat=true", *qkv]}
    convert(build_request(target=str(tmp_path / "mf"), **there, **options))
    back = {"source": str(tmp_path / "mf"), "preset": "qwen2", "switch": qkv, "like": str(family.hf)}
    convert(build_request(target=str(tmp_path / "out"), lora=str(place), **back, **options))
    convert(build_request(source=str(family.hf), target=str(tmp_path / "wanted"), lora=str(place), **options))
    wanted, before = directory_contents(tmp_path / "wanted"), directory_contents(family.hf)
    assert directory_contents(tmp_path / "out") == wanted
    assert sum(wanted[name] != before[name] for name in wanted) == len(biases) + 1


def test_loading_merges_after_the_preset(tmp_path: Path) -> None:
    family = Family("qwen3")
    source = str(written(tmp_path / "mf", load_file(family.mf)))
    lora = str(adapter(tmp_path / "peft", whole(family), PEFT))
    options: dict[str, Any] = {"preset": "qwen3", "switch": switches_of(family), "config_json": str(family.hf)}
    found = dict(load_rank(source, lora=lora, **options))
    wanted = merged(whole(family))
    assert {name: np.asarray(each).tobytes() for name, each in found.items()} == {
        name: each.tobytes() for name, each in wanted.items()
    }


ADDED = """
preset: added
title: norms whose values begin at 0 in the source
proof: read
names:
  mine:
    layers:
      layers.{L}: model.layers.{L}
    layer:
      - mf: norm.weight
        hf: {input_layernorm.weight: ["4"]}
        added: 1
      - mf: q.weight
        hf: {self_attn.q_proj.weight: ["4", "4"]}
"""


def test_what_is_added_to_on_the_way_is_not_adapted(tmp_path: Path) -> None:
    """A norm that was trained beside the matrices would be added to, too."""
    preset = tmp_path / "added.yaml"
    preset.write_text(ADDED)
    square, norm = np.ones((4, 4), np.float32), np.ones(4, np.float32)
    source = written(tmp_path / "mf", {"layers.0.norm.weight": norm, "layers.0.q.weight": square})
    place = tmp_path / "lora"
    place.mkdir()
    lora = peft(LLAMA) | {"base_model.model.model.layers.0.input_layernorm.weight": norm}
    lora = {name: each[:4, :4] if each.ndim == 2 else each for name, each in lora.items()}
    save_file({name: np.ascontiguousarray(each) for name, each in lora.items()}, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps(CONFIG | {"modules_to_save": ["input_layernorm"]}))
    given = {"source": str(source), "preset": str(preset), "layout": "unified", "lora": str(place)}
    with pytest.raises(
        PlanError, match=r"input_layernorm.weight' is added to on the way: convert without .lora. first"
    ):
        convert(build_request(target=str(tmp_path / "out"), **given))


def test_quantizing_comes_after_the_merge(tmp_path: Path) -> None:
    family = Family("qwen3")
    options: dict[str, Any] = {"layout": "unified", "fp8": "quantize"}
    weights = {name: each.astype(ml_dtypes.bfloat16) for name, each in whole(family).items()}
    lora = str(adapter(tmp_path / "peft", weights, PEFT))
    config = json.loads((family.hf / "config.json").read_text())
    hf = written(tmp_path / "hf", weights, config)
    there = {"source": str(hf), "preset": "qwen3", "layout": "unified", "switch": switches_of(family, to_mf=True)}
    convert(build_request(target=str(tmp_path / "mf"), **there))
    back = {"source": str(tmp_path / "mf"), "preset": "qwen3", "switch": switches_of(family), "config_json": str(hf)}
    convert(build_request(target=str(tmp_path / "out"), lora=lora, **back, **options))
    then = written(tmp_path / "then", merged(weights), config)
    convert(build_request(source=str(then), target=str(tmp_path / "wanted"), **options))
    assert directory_contents(tmp_path / "out") == directory_contents(tmp_path / "wanted")
