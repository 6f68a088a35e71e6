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
    "self_attn.o_proj.bias": "self_attention.linear_proj.bias",
    "self_attn.sinks": "self_attention.core_attention.softmax_offset",
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
    "self_attn.q_a_proj.weight": "self_attention.linear_q_down_proj.weight",
    "self_attn.q_b_proj.weight": "self_attention.linear_q_up_proj.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "self_attention.linear_kv_down_proj.weight",
    "self_attn.kv_b_proj.weight": "self_attention.linear_kv_up_proj.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
    "mlp.gate_up_proj.weight": "mlp.linear_fc1.weight",
    "self_attn.query_layernorm.weight": "self_attention.q_layernorm.weight",
    "self_attn.key_layernorm.weight": "self_attention.k_layernorm.weight",
    "mlp.down_proj.bias": "mlp.linear_fc2.bias",
    "mlp.gate.weight": "mlp.router.weight",
    "block_sparse_moe.gate.weight": "mlp.router.weight",
    "mlp.gate.wg.weight": "mlp.router.weight",
    "mlp.router.weight": "mlp.router.weight",
    "mlp.router.bias": "mlp.router.bias",
    "mlp.gate.e_score_correction_bias": "mlp.router.expert_bias",
    "block_sparse_moe.e_score_correction_bias": "mlp.router.expert_bias",
    "mlp.shared_experts.down_proj.weight": "mlp.shared_experts.linear_fc2.weight",
    "mlp.shared_expert.down_proj.weight": "mlp.shared_experts.linear_fc2.weight",
    "mlp.shared_mlp.down_proj.weight": "mlp.shared_experts.linear_fc2.weight",
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
    # all of q, then of k, then of v
    for name in ("self_attn.qkv_proj.weight", "self_attn.qkv_proj.bias", "self_attn.W_pack.weight"):
        if name in rest:
            whole = rest.pop(name)
            of_group = len(whole) // (config["num_attention_heads"] + 2 * groups)
            parts = np.split(whole, [of_group * config["num_attention_heads"], len(whole) - of_group * groups])
            made[f"self_attention.linear_qkv.{name.rpartition('.')[2]}"] = grouped(parts, groups)
    for theirs in ("mlp", "mlp.shared_experts", "mlp.shared_expert", "mlp.shared_mlp"):
        ours = "mlp.shared_experts" if "shared" in theirs else "mlp"
        for kind in ("weight", "bias"):
            if f"{theirs}.gate_proj.{kind}" in rest:
                both = [rest.pop(f"{theirs}.{name}_proj.{kind}") for name in ("gate", "up")]
                made[f"{ours}.linear_fc1.{kind}"] = np.concatenate(both)
    made |= _experts(rest, experts)
    made |= _norms(rest, norms, is_dense=bool({"mlp.linear_fc1.weight", "mlp.gate_up_proj.weight"} & {*made, *rest}))
    for place in ("mlp.moe_statics", "mlp.gate.moe_statics"):
        if f"{place}.e_score_correction_bias" in rest:
            made["mlp.router.expert_bias"] = rest.pop(f"{place}.e_score_correction_bias")[0]
    return made | {_RENAMED[name]: array for name, array in rest.items()}


def _experts(rest: Arrays, spelling: str) -> Arrays:
    """The experts, which are taken out of `rest`."""
    found = _alternating_experts(rest) if "mlp.experts.gate_up_proj" in rest else _single_experts(rest)
    if spelling == "stacked":
        return {f"mlp.experts.experts.{name}": np.stack(parts) for name, parts in found.items()}
    if spelling == "grouped":
        swapped = {name: np.ascontiguousarray(np.stack(parts).swapaxes(1, 2)) for name, parts in found.items()}
        return {f"mlp.experts.weight{name[9]}": each for name, each in swapped.items()}
    form = "mlp.experts.local_experts.{e}.{name}" if spelling == "sequential" else "mlp.experts.{name}{e}"
    return {form.format(e=e, name=name): part for name, parts in found.items() for e, part in enumerate(parts)}


def _single_experts(rest: Arrays) -> dict[str, list[np.ndarray]]:
    """Megatron's weights of each expert: gate's rows, then up's."""
    names = ("mlp.experts", "gate_proj", "up_proj", "down_proj")
    if any(name.startswith("block_sparse_moe.experts") for name in rest):
        names = ("block_sparse_moe.experts", "w1", "w3", "w2")
    place, gate, up, down = names
    numbers = range(sum(name.startswith(place) for name in rest) // 3)
    fc1 = [np.concatenate([rest.pop(f"{place}.{e}.{name}.weight") for name in (gate, up)]) for e in numbers]
    fc2 = [rest.pop(f"{place}.{e}.{down}.weight") for e in numbers]
    return {"linear_fc1.weight": fc1, "linear_fc2.weight": fc2} if fc1 else {}


def _alternating_experts(rest: Arrays) -> dict[str, list[np.ndarray]]:
    """The same of gpt-oss, whose matrices are [in, out] and have a column of gate, a column of up, and so on."""

    def apart(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[::2], rows[1::2]])

    place = "mlp.experts."
    return {
        "linear_fc1.weight": [apart(each.T) for each in rest.pop(f"{place}gate_up_proj")],
        "linear_fc1.bias": [apart(each) for each in rest.pop(f"{place}gate_up_proj_bias")],
        "linear_fc2.weight": [np.ascontiguousarray(each.T) for each in rest.pop(f"{place}down_proj")],
        "linear_fc2.bias": [*rest.pop(f"{place}down_proj_bias")],
    }


def _norms(rest: Arrays, spelling: str, *, is_dense: bool) -> Arrays:
    """The norms, which are taken out of `rest`."""
    is_latent = "self_attn.kv_a_layernorm.weight" in rest
    fused = spelling != "separate"
    before_mlp = fused and (is_dense or spelling == "fused")
    engine = spelling == "transformer_engine"
    place = "self_attention.linear_qkv.layer_norm_weight" if fused and not is_latent else "input_layernorm.weight"
    made = {place: rest.pop("input_layernorm.weight")} if "input_layernorm.weight" in rest else {}
    place = "mlp.linear_fc1.layer_norm_weight" if before_mlp else "pre_mlp_layernorm.weight"
    attention, mlp = ("post_attn_norm.weight", "post_mlp_layernorm.weight")
    if fused:
        attention, mlp = (f"{name}.post_layernorm.weight" for name in ("self_attention.linear_proj", "mlp.linear_fc2"))
    if "post_feedforward_layernorm.weight" in rest:  # after: Gemma, which has w - 1 as w, and OLMo 2
        made[attention] = rest.pop("post_attention_layernorm.weight")
        made[mlp] = rest.pop("post_feedforward_layernorm.weight")
        if "pre_feedforward_layernorm.weight" in rest:
            made[place] = rest.pop("pre_feedforward_layernorm.weight")
    else:
        made[place] = rest.pop("post_attention_layernorm.weight")
    if "post_self_attn_layernorm.weight" in rest:  # GLM-4's
        made[attention] = rest.pop("post_self_attn_layernorm.weight")
        made[mlp] = rest.pop("post_mlp_layernorm.weight")
    for theirs, norm, up in (("q_a", "q", "linear_q_up_proj"), ("kv_a", "kv", "linear_kv_up_proj")):
        name = f"self_attn.{theirs}_layernorm.weight"
        if name in rest:
            place = f"{up}.layer_norm_weight" if engine else f"{norm}_layernorm.weight"
            made[f"self_attention.{place}"] = rest.pop(name)
    return made
