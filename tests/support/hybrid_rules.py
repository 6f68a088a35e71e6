"""Megatron's layouts of gated delta nets, in numpy alone, as Megatron-Bridge and MindSpeed-LLM make them."""

import re
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays

Config = dict[str, Any]
_MTP = {
    "mtp.fc.weight": "eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
    "mtp.norm.weight": "shared_head.norm.weight",
}
_SAME = {"linear_attn.conv1d.weight": "conv1d.weight", "linear_attn.A_log": "A_log", "linear_attn.dt_bias": "dt_bias",
         "linear_attn.out_proj.weight": "out_proj.weight", "self_attn.o_proj.weight": "linear_proj.weight",
         "self_attn.q_norm.weight": "q_layernorm.weight", "self_attn.k_norm.weight": "k_layernorm.weight"}  # fmt: skip
_APART = {
    **{f"linear_attn.{name}.weight": f"{name}.weight" for name in ("in_proj_qkvz", "in_proj_ba", "norm")},
    **{f"self_attn.{name}_proj.weight": f"{name}_proj.weight" for name in "qkv"},
}


def hybrid(
    hf: Arrays,
    config: Config,
    in_proj: str = "fused",
    megatron_experts: str = "sequential",
    megatron_norms: str = "separate",
    megatron_delta_nets: str = "whole",
) -> Arrays:
    """The weights of Qwen3-Next or Qwen3.5 under Megatron's names."""
    count = config["num_hidden_layers"]
    attention: dict[str, Arrays] = {}
    rest: Arrays = {}
    for name, array in hf.items():
        # the layer for multi-token prediction is like one after the others
        new = f"model.layers.{count}.{_MTP[name]}" if name in _MTP else name
        new = re.sub(r"^mtp\.layers\.0\.", f"model.layers.{count}.", new)
        found = re.fullmatch(r"(model\.layers\.\d+)\.((?:self_attn|linear_attn)\..+)", new)
        if found:
            attention.setdefault(found[1], {})[found[2]] = array
        else:
            rest[new] = array
    made = megatron(_apart_experts(rest), config, megatron_experts, megatron_norms)
    for layer, parts in attention.items():
        number = int(layer.rpartition(".")[2])
        place = f"decoder.layers.{number}" if number < count else "mtp.layers.0.transformer_layer"
        ours = _attention(parts, config, in_proj)
        norm = made.pop(f"{place}.self_attention.linear_qkv.layer_norm_weight", None)
        if norm is not None:
            fused = next((name for name in ("linear_qkv", "in_proj") if f"{name}.weight" in ours), None)
            # without a fused matrix there is nothing that the norm could be part of
            name = f"self_attention.{fused}.layer_norm_weight" if fused else "input_layernorm.weight"
            made[f"{place}.{name}"] = norm
        if megatron_delta_nets == "apart":
            ours = _stored_apart(ours, config)
        made |= {f"{place}.self_attention.{name}": array for name, array in ours.items()}
    return made


def _apart_experts(hf: Arrays) -> Arrays:
    """Experts that are fused, one by one."""
    made: Arrays = {}
    for name, array in hf.items():
        if name.endswith("experts.gate_up_proj"):
            place = name.removesuffix(".gate_up_proj")
            for number, both in enumerate(array):
                gate, up = np.split(both, 2)
                made |= {f"{place}.{number}.gate_proj.weight": gate, f"{place}.{number}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            place = name.removesuffix(".down_proj")
            made |= {f"{place}.{number}.down_proj.weight": each for number, each in enumerate(array)}
        else:
            made[name] = array
    return made


def _attention(parts: Arrays, config: Config, in_proj: str) -> Arrays:
    made = {_SAME[name]: array for name, array in parts.items() if name in _SAME}
    if in_proj == "apart":
        return made | {_APART[name]: array for name, array in parts.items() if name not in _SAME}
    if "self_attn.q_proj.weight" in parts:
        made["linear_qkv.weight"] = _gated_qkv(parts, config)
        return made
    made["in_proj.weight"] = np.concatenate(_of_delta_net(parts, config))
    made["out_norm.weight"] = _less_one(parts["linear_attn.norm.weight"])
    return made


def _stored_apart(ours: Arrays, config: Config) -> Arrays:
    """What torch_dist has of each fused parameter of a gated delta net: one for each of its parts."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    heads = config["linear_num_value_heads"]
    lengths = {"query": keys, "key": keys, "value": values, "z": values, "beta": heads, "alpha": heads}
    made = dict(ours)
    for name in made.keys() & {"in_proj.weight", "conv1d.weight"}:
        whole, start = made.pop(name), 0
        for part, length in lengths.items():
            if start < len(whole):
                made[f"{name}.{part}"] = whole[start : start + length]
                start += length
    return made


def _gated_qkv(parts: Arrays, config: Config) -> np.ndarray:
    """In each group the queries of its heads, then their gates, then k and v."""
    heads, groups, of_head = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    q, k, v = (parts[f"self_attn.{name}_proj.weight"] for name in "qkv")
    columns = q.shape[1]
    both = q.reshape(heads, 2 * of_head, columns)
    queries = both[:, :of_head].reshape(groups, -1, columns)
    gates = both[:, of_head:].reshape(groups, -1, columns)
    keys, values = (each.reshape(groups, of_head, columns) for each in (k, v))
    return np.concatenate([queries, gates, keys, values], axis=1).reshape(-1, columns)


def _of_delta_net(parts: Arrays, config: Config) -> list[np.ndarray]:
    """All rows of q, k, v, z, b and a."""
    if "linear_attn.in_proj_qkv.weight" in parts:
        return [parts[f"linear_attn.in_proj_{name}.weight"] for name in ("qkv", "z", "b", "a")]
    heads, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys_of = config["linear_key_head_dim"]
    values_of = config["linear_value_head_dim"] * values // heads
    qkvz, ba = (parts[f"linear_attn.in_proj_{name}.weight"] for name in ("qkvz", "ba"))
    columns = qkvz.shape[1]
    ends = np.cumsum([keys_of, keys_of, values_of])
    split = np.split(qkvz.reshape(heads, -1, columns), ends, axis=1)
    split += np.split(ba.reshape(heads, -1, columns), 2, axis=1)
    return [each.reshape(-1, columns) for each in split]


def _less_one(norm: np.ndarray) -> np.ndarray:
    """One less, rounded once from float32; of two bytes the bits are bfloat16's."""
    if norm.dtype == np.uint16:
        return (norm.view(ml_dtypes.bfloat16).astype(np.float32) - 1).astype(ml_dtypes.bfloat16).view(np.uint16)
    less: np.ndarray = norm.view(np.float32) - np.float32(1)
    return less.view(norm.dtype)
