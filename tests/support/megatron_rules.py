"""Megatron-Core's names and layouts of Hugging Face's weights, in numpy alone: apart from the presets."""

import re
from typing import Any

import numpy as np

from tests.support.mindformers_rules import Arrays, grouped

_MODEL = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
_RENAMED = {
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
    "self_attn.q_a_proj.weight": "self_attention.linear_q_down_proj.weight",
    "self_attn.q_b_proj.weight": "self_attention.linear_q_up_proj.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "self_attention.linear_kv_down_proj.weight",
    "self_attn.kv_b_proj.weight": "self_attention.linear_kv_up_proj.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
    "mlp.gate.weight": "mlp.router.weight",
    "block_sparse_moe.gate.weight": "mlp.router.weight",
    "mlp.gate.e_score_correction_bias": "mlp.router.expert_bias",
    "mlp.shared_experts.down_proj.weight": "mlp.shared_experts.linear_fc2.weight",
    "mlp.shared_expert.down_proj.weight": "mlp.shared_experts.linear_fc2.weight",
    "mlp.shared_expert_gate.weight": "mlp.shared_experts.gate_weight",
}
_OF_MTP = {name: f"{name}.weight" for name in ("enorm", "hnorm", "eh_proj")}
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")


def megatron(hf: Arrays, config: dict[str, Any], experts: str = "sequential", norms: str = "separate") -> Arrays:
    """The weights of a model under Megatron's names, of one way to spell experts and norms."""
    layers: dict[int, Arrays] = {}
    made: Arrays = {}
    for name, array in hf.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name):
            layers.setdefault(int(match[1]), {})[match[2]] = array
        else:
            made[_MODEL[name]] = array
    count = config["num_hidden_layers"]
    for number, layer in layers.items():
        prefix = f"decoder.layers.{number}"
        if number >= count:
            mtp = f"mtp.layers.{number - count}"
            made |= {f"{mtp}.{name}.weight": layer.pop(f"{name}.weight") for name in _OF_MTP}
            made[f"{mtp}.final_layernorm.weight"] = layer.pop("shared_head.norm.weight")
            prefix = f"{mtp}.transformer_layer"
            layer = {name: array for name, array in layer.items() if name not in _COPIES}
        made |= {f"{prefix}.{name}": array for name, array in _layer(layer, config, experts, norms).items()}
    return made


def _layer(layer: Arrays, config: dict[str, Any], experts: str, norms: str) -> Arrays:
    groups = config.get("num_key_value_heads") or config["num_attention_heads"]
    rest = dict(layer)
    made: Arrays = {}
    for kind in ("weight", "bias"):
        if f"self_attn.k_proj.{kind}" in rest:
            parts = [rest.pop(f"self_attn.{name}_proj.{kind}") for name in "qkv"]
            made[f"self_attention.linear_qkv.{kind}"] = grouped(parts, groups)
    for theirs, ours in (("mlp", "mlp"), ("mlp.shared_experts", "mlp.shared_experts"),
                         ("mlp.shared_expert", "mlp.shared_experts")):  # fmt: skip
        if f"{theirs}.gate_proj.weight" in rest:
            both = [rest.pop(f"{theirs}.{name}_proj.weight") for name in ("gate", "up")]
            made[f"{ours}.linear_fc1.weight"] = np.concatenate(both)
    made |= _experts(rest, experts)
    made |= _norms(rest, norms, is_dense="mlp.linear_fc1.weight" in made)
    return made | {_RENAMED[name]: array for name, array in rest.items()}


def _experts(rest: Arrays, spelling: str) -> Arrays:
    """The experts, which are taken out of `rest`."""
    names = ("mlp.experts", "gate_proj", "up_proj", "down_proj")
    if any(name.startswith("block_sparse_moe.experts") for name in rest):
        names = ("block_sparse_moe.experts", "w1", "w3", "w2")
    place, gate, up, down = names
    numbers = range(sum(name.startswith(place) for name in rest) // 3)
    fc1 = [np.concatenate([rest.pop(f"{place}.{e}.{name}.weight") for name in (gate, up)]) for e in numbers]
    fc2 = [rest.pop(f"{place}.{e}.{down}.weight") for e in numbers]
    if not fc1:
        return {}
    both = {"linear_fc1": fc1, "linear_fc2": fc2}
    if spelling == "stacked":
        return {f"mlp.experts.experts.{name}.weight": np.stack(parts) for name, parts in both.items()}
    if spelling == "grouped":
        swapped = {name: np.ascontiguousarray(np.stack(parts).swapaxes(1, 2)) for name, parts in both.items()}
        return {"mlp.experts.weight1": swapped["linear_fc1"], "mlp.experts.weight2": swapped["linear_fc2"]}
    form = {
        "sequential": "mlp.experts.local_experts.{e}.{name}.weight",
        "transformer_engine": "mlp.experts.{name}.weight{e}",
    }[spelling]
    return {form.format(e=e, name=name): part for name, parts in both.items() for e, part in enumerate(parts)}


def _norms(rest: Arrays, spelling: str, *, is_dense: bool) -> Arrays:
    """The norms, which are taken out of `rest`."""
    is_latent = "self_attn.kv_a_layernorm.weight" in rest
    fused = spelling != "separate"
    before_mlp = fused and (is_dense or spelling == "fused")
    engine = spelling == "transformer_engine"
    place = "self_attention.linear_qkv.layer_norm_weight" if fused and not is_latent else "input_layernorm.weight"
    made = {place: rest.pop("input_layernorm.weight")}
    place = "mlp.linear_fc1.layer_norm_weight" if before_mlp else "pre_mlp_layernorm.weight"
    made[place] = rest.pop("post_attention_layernorm.weight")
    for theirs, norm, up in (("q_a", "q", "linear_q_up_proj"), ("kv_a", "kv", "linear_kv_up_proj")):
        name = f"self_attn.{theirs}_layernorm.weight"
        if name in rest:
            place = f"{up}.layer_norm_weight" if engine else f"{norm}_layernorm.weight"
            made[f"self_attention.{place}"] = rest.pop(name)
    return made
