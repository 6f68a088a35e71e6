"""LoRA adapters in other names than those of the base: merged after a preset's steps, held against numpy."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard import load_rank
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from reshard.core.verification.published import verify_target
from tests.core.conversion.test_family_rules import CASES, FUSED, Case
from tests.core.conversion.test_lora import FIXTURES, chain
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


ALONE: list[tuple[str, str, list[str], dict[str, str]]] = [
    (
        *("llama", "mindpet", ["names=legacy"]),
        {"self_attn.q_proj": "attention.wq", "self_attn.o_proj": "attention.wo", "mlp.down_proj": "feed_forward.w2"},
    ),
    ("llama", "tk", [], {"self_attn.v_proj": "attention.wv", "mlp.gate_proj": "feed_forward.w1"}),
    ("qwen2", "mindpet", [], {"mlp.up_proj": "feed_forward.w3"}),
    (
        *("qwen3", "parallel_core", []),
        {"self_attn.o_proj": "self_attention.linear_proj", "mlp.down_proj": "mlp.linear_fc2"},
    ),
    ("qwen3", "pynative", [], {"self_attn.o_proj": "self_attention.linear_proj"}),
    ("deepseek3", "pynative", [], {"self_attn.o_proj": "self_attention.linear_proj"}),
]
"""Preset, MindFormers' names of matrices, switches, and modules that are the same on both sides."""


def alone(directory: Path, name: str, modules: dict[str, str], names: tuple[str, str], layers: str) -> dict[str, Any]:
    """An adapter of some modules of all layers, in one side's names; its tensors by the other side's."""
    family = Family(name)
    weights = whole(family)
    count = json.loads((family.hf / "config.json").read_text())["num_hidden_layers"]
    tensors: Arrays = {}
    for number in range(count):
        for module, theirs in modules.items():
            rows, columns = weights[f"model.layers.{number}.{module}.weight"].shape
            whose = f"model.layers.{number}.{module}" if names == PEFT else f"{layers}.{number}.{theirs}"
            for which, shape in zip(names, ((RANK, columns), (rows, RANK)), strict=True):
                size = number * 1000 + sum(map(ord, module)) + shape[0]
                tensors[which.format(whose)] = np.random.default_rng(size).normal(size=shape).astype(np.float32)
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    return tensors


@pytest.mark.parametrize(("name", "spelling", "switch", "modules"), ALONE)
def test_an_adapter_alone(name: str, spelling: str, switch: list[str], modules: dict[str, str], tmp_path: Path) -> None:
    spelled = {
        "mindpet": MINDPET,
        "tk": ("{}.tk_delta_lora_a", "{}.tk_delta_lora_b"),
        "parallel_core": ("{}.lora_A.weight", "{}.lora_B.weight"),
        "pynative": ("{}.lora_a", "{}.lora_b"),
    }[spelling]
    layers = "model.layers" if spelling in ("mindpet", "tk") else "decoder.layers"
    tensors = alone(tmp_path / "peft", name, modules, PEFT, layers)
    alone(tmp_path / "mindformers", name, modules, spelled, layers)
    config = {"config_json": str(Family(name).hf), "preset": name, "layout": "unified", "verify": "content"}
    to_mf = {"source": str(tmp_path / "peft"), "switch": [*switch, f"lora_names={spelling}"]}
    (tmp_path / "peft/adapter_config.json").write_text(json.dumps(CONFIG | {"use_rslora": True}))
    report = convert(build_request(target=str(tmp_path / "to_mf"), **to_mf, **config))
    assert "a training that goes on from this adapter needs lora_rank 4, lora_alpha 12" in report.notes
    assert directory_contents(tmp_path / "to_mf") == directory_contents(tmp_path / "mindformers")
    to_hf = {"source": str(tmp_path / "mindformers"), "lora_alpha": 6}
    report = convert(build_request(target=str(tmp_path / "to_hf"), **to_hf, **config))
    assert directory_contents(tmp_path / "to_hf") == directory_contents(tmp_path / "peft")
    assert any(note.startswith("adapter_config.json: r 4, lora_alpha 6, ") for note in report.notes)
    written_config = json.loads((tmp_path / "to_hf" / "adapter_config.json").read_text())
    assert (written_config["r"], written_config["lora_alpha"]) == (RANK, 6)
    assert {f"base_model.model.{module}.lora_A.weight" for module in written_config["target_modules"]} == {
        name for name in tensors if "lora_A" in name
    }
    assert not verify_target(str(tmp_path / "to_hf"), VerifyLevel.CONTENT).problems
    assert sorted(path.name for path in (tmp_path / "to_hf").iterdir() if path.name != ".reshard") == [
        *("adapter_config.json", "adapter_model.safetensors")
    ]


def rename_refusal(directory: Path, name: str, tensors: Arrays, *switch: str, **options: Any) -> str:
    place = directory / "adapter"
    place.mkdir()
    save_file(tensors, place / "adapter_model.safetensors")
    given = {"config_json": str(Family(name).hf), "preset": name, "layout": "unified"} | options
    with pytest.raises(InputError) as raised:
        convert(build_request(source=str(place), target=str(directory / "out"), switch=[*switch], **given))
    assert not (directory / "out").exists()
    return str(raised.value)


def peft(*modules: str) -> Arrays:
    return {f"base_model.model.{name}": each for module in modules for name, each in pair(module).items()}


MATRICES = "lora_names=parallel_core"
O_PROJ = "model.layers.0.self_attn.o_proj"
CANNOT = [
    (
        "qwen3",
        peft(LLAMA),
        [MATRICES],
        "the preset has no row for 'model.layers.0.self_attn.q_proj.weight' alone: it is unknown, or",
    ),
    (
        "qwen3",
        peft(LLAMA, LLAMA.replace("q_proj", "k_proj"), LLAMA.replace("q_proj", "v_proj")),
        [MATRICES],
        "'model.layers.0.self_attn.k_proj.weight' is joined, and 'decoder.layers.0.self_attention.linear_qkv.weight'",
    ),
    (
        "qwen3",
        pair("decoder.layers.0.self_attention.linear_qkv"),
        [],
        "'decoder.layers.0.self_attention.linear_qkv.weight' is 'model.layers.0.self_attn.q_proj.weight', ",
    ),
    ("qwen3_moe", peft("model.layers.0.mlp.experts.0.down_proj"), [MATRICES], "down_proj.weight' alone: it is unknown"),
    ("qwen3", peft("model.layers.0.foo", O_PROJ), [MATRICES], "no row for 'model.layers.0.foo.weight' alone"),
    (
        "qwen3",
        peft(O_PROJ) | pair(O_PROJ),
        [MATRICES],
        f"'base_model.model.{O_PROJ}.lora_A.weight' and '{O_PROJ}.lora_A.weight' are the same matrix of '{O_PROJ}'",
    ),
    (
        "qwen3",
        {f"base_model.model.{O_PROJ}.lora_B.weight": np.ones((8, 4), np.float32)},
        [MATRICES],
        f"'base_model.model.{O_PROJ}.lora_B.weight' has no counterpart, the matrix A of '{O_PROJ}'",
    ),
    ("qwen3", peft(O_PROJ), [], "in several ways, and nothing says how MindFormers does: "),
    ("qwen3", peft(O_PROJ), ["lora_names=peft"], "'peft' is not one of these ways: "),
    ("qwen3", pair("decoder.layers.0.mlp.linear_fc2"), [MATRICES], "the target gets PEFT's names"),
    (
        "qwen3",
        peft(O_PROJ) | {"base_model.model.lm_head.weight": np.ones((8, 8), np.float32)},
        [MATRICES],
        "'base_model.model.lm_head.weight' is no matrix of a linear layer: other worlds have no name for it",
    ),
    (
        "qwen3",
        peft(O_PROJ) | {"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((4, 8), np.float32)},
        [MATRICES],
        "'base_model.model.model.embed_tokens.lora_embedding_A' is no matrix of a linear layer",
    ),
]


@pytest.mark.parametrize(("name", "tensors", "switch", "problem"), CANNOT)
def test_adapters_alone_that_have_no_other_names(
    name: str, tensors: Arrays, switch: list[str], problem: str, tmp_path: Path
) -> None:
    qkv = [] if name == "llama" else ["use_interleaved_weight_layout_mlp=true"] * (name == "qwen3")
    contiguous = ["use_contiguous_weight_layout_attention=false"]
    assert problem in rename_refusal(tmp_path, name, tensors, *switch, *qkv, *contiguous)


def test_adapters_alone_of_programs_without_known_names(tmp_path: Path) -> None:
    text = rename_refusal(tmp_path, "qwen3", peft(O_PROJ), names="megatron")
    assert "preset qwen3: reshard does not know what Megatron calls the matrices of adapters: merge it instead" in text


def test_adapters_alone_between_two_other_worlds(tmp_path: Path) -> None:
    tensors = pair("decoder.layers.0.mlp.linear_fc2")
    text = rename_refusal(tmp_path, "qwen3", tensors, FROM, MATRICES, names="mcore")
    assert "the names of adapters lead from one world to another in two steps: to Hugging Face's first" in text


def checkpoint2(directory: Path, tensors: Arrays) -> Path:
    """A training's Checkpoint 2.0 of adapters alone."""
    shutil.copytree(FIXTURES / "case_mf_adapter_only" / "adapter", directory)
    [file] = directory.glob("*/*.safetensors")
    file.unlink()
    save_file(tensors, file)
    return directory


def test_a_checkpoint_2_of_adapters_alone(tmp_path: Path) -> None:
    """It is merged after the preset, as what the target's names are of; and it gets PEFT's names."""
    family = Family("qwen3")
    rules = load_file(family.mf)
    names = ("{}.lora_a", "{}.lora_b")
    modules = [f"decoder.layers.{number}.mlp.linear_fc2" for number in (0, 1)]
    chosen = {module: matrices(rules)[module] for module in modules}
    tensors = {
        name.format(module): each for module, both in chosen.items() for name, each in zip(names, both, strict=True)
    }
    lora = checkpoint2(tmp_path / "lora", tensors)
    options: dict[str, Any] = {"preset": "qwen3", "layout": "unified", "verify": "content"}
    to_mf = {"source": str(family.hf), "switch": switches_of(family, to_mf=True), "lora": str(lora)}
    convert(build_request(target=str(tmp_path / "merged"), **to_mf, **options))
    found = load_file(tmp_path / "merged/model.safetensors")
    everything = merged(rules)
    wanted = {name: everything[name] if name.removesuffix(".weight") in chosen else rules[name] for name in rules}
    assert {name: each.tobytes() for name, each in found.items()} == {
        name: each.tobytes() for name, each in wanted.items()
    }
    to_peft = {"source": str(lora), "config_json": str(family.hf)}
    convert(build_request(target=str(tmp_path / "peft"), **to_peft, **options))
    found = load_file(tmp_path / "peft/adapter_model.safetensors")
    for number, module in enumerate(modules):
        theirs = f"model.layers.{number}.mlp.down_proj"
        assert found.pop(PEFT[0].format(theirs)).tobytes() == chosen[module][0].tobytes()
        assert found.pop(PEFT[1].format(theirs)).tobytes() == chosen[module][1].tobytes()
    assert not found


def test_what_pefts_configuration_needs_is_never_guessed(tmp_path: Path) -> None:
    module = "decoder.layers.{}.mlp.linear_fc2"
    text = rename_refusal(tmp_path, "qwen3", pair(module.format(0)))
    assert "alpha, on which the scale depends, is not among its tensors" in text
    shutil.rmtree(tmp_path / "adapter")
    wide = {name: np.ones((8, 32) if "lora_A" in name else (32, 8), np.float32) for name in pair(module.format(1))}
    text = rename_refusal(tmp_path, "qwen3", pair(module.format(0)) | wide, lora_alpha=6)
    assert "its modules have ranks of 4 and 8; the target has no place for that" in text


def test_alpha_is_of_a_preset_or_an_adapter() -> None:
    with pytest.raises(InputError, match="only valid with .preset. or .lora."):
        build_request(source="/src", target="/out", lora_alpha=3)


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


def test_a_selection_of_an_adapter_alone(tmp_path: Path) -> None:
    modules = {"self_attn.o_proj": "attention.wo", "mlp.down_proj": "feed_forward.w2"}
    alone(tmp_path / "peft", "llama", modules, PEFT, "model.layers")
    given = {"source": str(tmp_path / "peft"), "exclude": ["*down_proj*"], "switch": ["lora_names=mindpet"]}
    convert(build_request(target=str(tmp_path / "out"), preset="llama", layout="unified", **given))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {name.rpartition(".")[0] for name in found} == {f"model.layers.{number}.attention.wo" for number in (0, 1)}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"alpha_pattern": {"o_proj": 3}}, "its configuration has rank_pattern or alpha_pattern, by names that change"),
        ({"fan_in_fan_out": True}, "its configuration has fan_in_fan_out, for a base whose matrices are transposed"),
        ({"r": 8}, "its matrices have rank 4, and its configuration says 8; the target has no place for that"),
        ({"init_lora_weights": "pissa"}, "the training began with other weights than the base's"),
    ],
)
def test_what_mindformers_cannot_say_of_an_adapter(config: dict[str, Any], problem: str, tmp_path: Path) -> None:
    place = tmp_path / "adapter"
    place.mkdir()
    (place / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(peft(O_PROJ), place / "adapter_model.safetensors")
    given = {"source": str(place), "preset": "qwen3", "layout": "unified", "switch": [MATRICES]}
    with pytest.raises(InputError) as raised:
        convert(build_request(target=str(tmp_path / "out"), **given))
    assert problem in str(raised.value)


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
