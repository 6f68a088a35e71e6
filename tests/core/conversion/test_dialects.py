"""Dialects of Hugging Face's names: experts one by one, as on the hub, and as transformers 5 holds them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError, ReshardError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.support.diagnosed import diagnose
from tests.support.families import Family, directory_contents, switches_of
from tests.support.mindformers_rules import Arrays
from tests.support.written_models import fused, written

FAMILIES = [Family(name) for name in ("qwen3_moe", "deepseek3_mtp", "mixtral")]
MOE = FAMILIES[0]
OF_ATTENTION = "use_contiguous_weight_layout_attention=false"


def arrays_of(family: Family) -> Arrays:
    found: Arrays = {}
    for path in family.hf.glob("*.safetensors"):
        found |= load_file(path)
    return found


def config_of(family: Family) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((family.hf / "config.json").read_text())
    return found


def options_of(family: Family, target: Path, **others: Any) -> dict[str, Any]:
    return {"target": str(target), "layout": "unified", "preset": family.case["preset"], **others}


def refusal(kind: type[ReshardError] = InputError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        make_plan(build_request(**options))
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_from_one_dialect_to_the_other_and_back(family: Family, tmp_path: Path) -> None:
    expected = written(tmp_path / "expected", fused(arrays_of(family)), config_of(family))
    there, back = tmp_path / "there", tmp_path / "back"
    to_there = options_of(family, there, dialect="transformers5", verify="content")
    report = convert(build_request(source=str(family.hf), **to_there))
    assert directory_contents(there) == directory_contents(expected)
    assert any("(hub and transformers5 names)" in note for note in report.notes)
    convert(build_request(source=str(there), **options_of(family, back, dialect="hub", config_json=str(family.hf))))
    assert directory_contents(back) == directory_contents(family.hf)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_what_training_wrote_in_either_dialect(family: Family, tmp_path: Path) -> None:
    expected = written(tmp_path / "expected", fused(arrays_of(family)), config_of(family))
    options = options_of(family, tmp_path / "out", switch=switches_of(family), config_json=str(family.hf))
    convert(build_request(source=str(family.mf), dialect="transformers5", **options))
    assert directory_contents(tmp_path / "out") == directory_contents(expected)
    (tmp_path / "out" / "config.json").write_text(json.dumps(config_of(family)))
    known = {"preset": family.case["preset"], "switch": switches_of(family)}
    assert compare_checkpoints(build_comparison(a=str(family.mf), b=str(tmp_path / "out"), **known)).same


def test_the_directory_that_the_target_is_modelled_on_decides(tmp_path: Path) -> None:
    like = written(tmp_path / "like", fused(arrays_of(MOE)), config_of(MOE))
    convert(build_request(source=str(MOE.hf), **options_of(MOE, tmp_path / "out", like=str(like))))
    assert directory_contents(tmp_path / "out") == directory_contents(like)


def test_a_dialect_that_contradicts_that_directory(tmp_path: Path) -> None:
    like = written(tmp_path / "like", fused(arrays_of(MOE)), config_of(MOE))
    options = options_of(MOE, tmp_path / "out", like=str(like), switch=switches_of(MOE))
    assert refusal(source=str(MOE.mf), dialect="hub", **options) == (
        "dialect='hub': the directory that 'like' names has transformers5 names: leave 'dialect' out, or name a "
        "directory that has config.json and the tokenizer only"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dialect": "hub"}, "dialect='hub': the source has hub names already"),
        ({"dialect": "transformers5", "switch": [OF_ATTENTION]},
         f"switch=['{OF_ATTENTION}']: dialects of Hugging Face's names do not depend on it: leave it out"),
        ({"dialect": "hub", "switch": ["to=mcore"]},
         "dialect='hub': only Hugging Face's names have dialects, and the target gets mcore names"),
    ],
)  # fmt: skip
def test_dialects_that_lead_nowhere(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    assert refusal(source=str(MOE.hf), **options_of(MOE, tmp_path / "out", **options)) == problem


def test_a_dialect_of_a_family_without_experts(tmp_path: Path) -> None:
    family = Family("qwen3")
    options = options_of(family, tmp_path / "out", dialect="transformers5")
    assert refusal(source=str(family.hf), **options) == (
        "dialect='transformers5': preset qwen3 has the same names in all dialects, and the source has them already: "
        "leave out 'dialect'"
    )


def test_a_dialect_without_a_preset(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dialect 'hub': only valid with 'preset'"):
        build_request(source=str(MOE.hf), target=str(tmp_path), dialect="hub")


def test_a_family_whose_names_are_the_same_in_both(tmp_path: Path) -> None:
    family = Family("qwen3")
    options = options_of(family, tmp_path / "out", switch=switches_of(family), config_json=str(family.hf))
    report = convert(build_request(source=str(family.mf), dialect="transformers5", **options))
    assert directory_contents(tmp_path / "out") == directory_contents(family.hf)
    assert "preset qwen3: its names are the hub's in transformers5, too" in report.notes


def test_sizes_of_another_model(tmp_path: Path) -> None:
    """Halves of another length would divide, and give plausible bytes."""
    config = config_of(MOE)
    source = written(tmp_path / "source", fused(arrays_of(MOE)), config | {"moe_intermediate_size": 2})
    text = refusal(PlanError, source=str(source), **options_of(MOE, tmp_path / "out", dialect="hub"))
    assert (
        "'model.layers.0.mlp.experts.0.gate_proj.weight' has shape [16, 48], by config.json it would be [2, 48]" in text
    )


def test_sizes_of_another_model_in_the_dialect(tmp_path: Path) -> None:
    config = config_of(MOE)
    source = written(tmp_path / "source", arrays_of(MOE), config | {"moe_intermediate_size": 2})
    text = refusal(PlanError, source=str(source), **options_of(MOE, tmp_path / "out", dialect="transformers5"))
    assert (
        "'model.layers.0.mlp.experts.gate_up_proj' has shape [4, 32, 48], by config.json it would be [4, 4, 48]" in text
    )


MINIMAX = {"model_type": "minimax", "num_hidden_layers": 2, "vocab_size": 32, "hidden_size": 16, "head_dim": 4,
           "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 10, "num_local_experts": 12,
           "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip


def minimax() -> Arrays:
    """A model of which no training has other names than Hugging Face's."""
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
        "block_sparse_moe.gate.weight": (12, 16),
        **{f"block_sparse_moe.experts.{e}.{name}.weight": (10, 16) for e in range(12) for name in ("w1", "w3")},
        **{f"block_sparse_moe.experts.{e}.w2.weight": (16, 10) for e in range(12)},
    }
    kinds: tuple[dict[str, tuple[int, ...]], ...] = (
        {"norm.weight": (16,), "qkv_proj.weight": (48, 16), "out_proj.weight": (16, 16), "output_gate.weight": (16, 16),
         "slope_rate": (4, 1, 1)},
        {f"{name}_proj.weight": (rows, 16) for name, rows in (("q", 16), ("k", 8), ("v", 8), ("o", 16))},
    )  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 16), "model.norm.weight": (16,)}
    shapes["lm_head.weight"] = (32, 16)
    for number, kind in enumerate(kinds):
        whole = layer | {f"self_attn.{name}": shape for name, shape in kind.items()}
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in whole.items()}
    draw = np.random.default_rng(1)
    return {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def test_a_family_with_dialects_only(tmp_path: Path) -> None:
    hub = written(tmp_path / "hub", minimax(), MINIMAX)
    expected = written(tmp_path / "expected", fused(minimax()), MINIMAX)
    options: dict[str, Any] = {"preset": "minimax", "layout": "unified", "config_json": str(hub)}
    there, back = tmp_path / "there", tmp_path / "back"
    convert(build_request(source=str(hub), target=str(there), dialect="transformers5", **options))
    assert directory_contents(there) == directory_contents(expected)
    convert(build_request(source=str(there), target=str(back), dialect="hub", **options))
    assert directory_contents(back) == directory_contents(hub)
    for directory in (hub, expected):
        loaded = diagnose(str(directory)).loaded
        assert loaded is not None
        assert (loaded.missing, loaded.dropped, loaded.mismatched) == ((), (), ())
    for source, other in ((hub, "transformers5"), (there, "hub")):
        said = refusal(source=str(source), target=str(tmp_path / "out"), **options)
        assert said.startswith("preset minimax: there are no names of this family besides Hugging Face's, and the")
        assert said.endswith(f"for its other dialect, dialect='{other}'")


def test_a_layer_of_the_wrong_kind_of_attention(tmp_path: Path) -> None:
    arrays = {name: array for name, array in minimax().items() if name != "model.layers.0.self_attn.norm.weight"}
    source = written(tmp_path / "source", arrays, MINIMAX)
    options: dict[str, Any] = {"preset": "minimax", "dialect": "transformers5", "target": str(tmp_path / "out")}
    assert "'model.layers.0.self_attn.norm.weight' is missing" in refusal(PlanError, source=str(source), **options)


def test_a_note_on_quantized_weights_spells_options(tmp_path: Path) -> None:
    hub = written(tmp_path / "hub", minimax(), MINIMAX)
    options: dict[str, Any] = {"preset": "minimax", "dialect": "transformers5", "layout": "unified", "fp8": "quantize"}
    report = convert(build_request(source=str(hub), target=str(tmp_path / "out"), **options))
    said = "no config.json is written that says so to loaders: name a directory with one, 'like'"
    assert any(note.endswith(said) for note in report.notes)


def test_an_expert_that_is_missing(tmp_path: Path) -> None:
    arrays = arrays_of(MOE)
    del arrays["model.layers.1.mlp.experts.3.up_proj.weight"]
    source = written(tmp_path / "source", arrays, config_of(MOE))
    text = refusal(PlanError, source=str(source), **options_of(MOE, tmp_path / "out", dialect="transformers5"))
    assert "'model.layers.1.mlp.experts.3.up_proj.weight' is missing" in text


def test_layers_of_both_dialects(tmp_path: Path) -> None:
    """As a merge of two models may leave them."""
    arrays = arrays_of(MOE)
    whole = fused(arrays)
    mixed = {name: array for name, array in whole.items() if ".layers.1." not in name}
    mixed |= {name: array for name, array in arrays.items() if ".layers.1." in name}
    source = written(tmp_path / "source", mixed, config_of(MOE))
    convert(build_request(source=str(source), **options_of(MOE, tmp_path / "out", dialect="hub")))
    assert directory_contents(tmp_path / "out") == directory_contents(MOE.hf)
