"""LoRA adapters alone in the names of another world: modules that are one on both sides, and what has no name."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.verification.published import verify_target
from tests.core.conversion.test_lora import FIXTURES
from tests.core.conversion.test_lora_names import (
    CONFIG,
    LLAMA,
    MINDPET,
    PEFT,
    RANK,
    matrices,
    merged,
    pair,
    peft,
    whole,
)
from tests.core.conversion.test_megatron_names import FROM
from tests.support.families import Family, directory_contents, switches_of
from tests.support.mindformers_rules import Arrays

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


MATRICES = "lora_names=parallel_core"
O_PROJ = "model.layers.0.self_attn.o_proj"
CANNOT = [
    (
        "qwen3",
        peft(LLAMA, LLAMA.replace("q_proj", "k_proj"), LLAMA.replace("q_proj", "v_proj")),
        [MATRICES],
        "have 32, 32, 32 elements, which is not 2 : 1 : 1: correct 'parts'",
    ),
    (
        "qwen3_moe",
        peft(*(f"model.layers.0.mlp.experts.{number}.down_proj" for number in range(4))),
        [MATRICES],
        "0.down_proj.weight' is transposed and stacked and merged, and 'decoder.layers.0.mlp.experts.weight2' there",
    ),
    ("qwen3", peft(O_PROJ), [MATRICES, "lora_join=some"], "'lora_join=some']: must be same or blocks"),
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
    assert "preset qwen3: reshard writes no adapters in Megatron's names: merge it instead" in text


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
    assert "its modules have ranks of 4 and 8; the target has no place for that. Merge it into its base instead" in text


def test_alpha_is_of_a_preset_or_an_adapter() -> None:
    with pytest.raises(InputError, match="only valid with .preset. or .lora."):
        build_request(source="/src", target="/out", lora_alpha=3)


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
        ({"r": 8}, "its matrices have rank 4, and its configuration says 8: correct it, or name that of its own"),
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
