"""MindFormers' layouts of Hugging Face's weights, in numpy alone: by its converters, and apart from the presets."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Config = Mapping[str, Any]


def rope_rows(weight: np.ndarray, of_head: int) -> np.ndarray:
    """In each head the even rows, then the odd ones."""
    heads = weight.reshape(-1, of_head, *weight.shape[1:])
    return np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(weight.shape)


def grouped(parts: list[np.ndarray], groups: int) -> np.ndarray:
    """For each group its rows of every part."""
    shaped = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(shaped, axis=1).reshape(-1, *parts[0].shape[1:])


def alternating(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """A row of gate, a row of up, and so on."""
    both = np.empty((2 * len(gate), *gate.shape[1:]), gate.dtype)
    both[0::2], both[1::2] = gate, up
    return both


def of_heads(weight: np.ndarray, heads: int, lengths: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The first rows of every head, and the others."""
    by_head = weight.reshape(heads, sum(lengths), *weight.shape[1:])
    first, second = by_head[:, : lengths[0]], by_head[:, lengths[0] :]
    return first.reshape(-1, *weight.shape[1:]), second.reshape(-1, *weight.shape[1:])


def _experts(hf: Arrays, prefix: str, name: str) -> np.ndarray:
    """Matrices of all experts, [E, out, in], as numbers order them."""
    found = {
        int(match[1]): array
        for key, array in hf.items()
        if (match := re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.{re.escape(name)}", key))
    }
    return np.stack([found[number] for number in range(len(found))])


def _layers(hf: Arrays, prefix: str) -> list[int]:
    return sorted({int(match[1]) for key in hf if (match := re.match(rf"{re.escape(prefix)}\.(\d+)\.", key))})


def _renamed(hf: Arrays, old: str, new: str, names: Mapping[str, str]) -> Arrays:
    """Those below a prefix that are there, under other names below another one."""
    return {f"{new}.{mf}": hf[f"{old}.{name}"] for name, mf in names.items() if f"{old}.{name}" in hf}


_LEGACY_MODEL = {
    "model.embed_tokens.weight": "model.tok_embeddings.embedding_weight",
    "model.norm.weight": "model.norm_out.weight",
    "lm_head.weight": "lm_head.weight",
}
_LEGACY_NORMS = {
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
_LEGACY_MLP = {
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
}


def deepseek3_legacy(hf: Arrays, config: Config, *, use_gmm: bool) -> Arrays:
    """DeepSeek-V3 under older names."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    rope, value = config["qk_rope_head_dim"], config["v_head_dim"]
    mf = {name: hf[key] for key, name in _LEGACY_MODEL.items() if key in hf}
    for number in _layers(hf, "model.layers"):
        old = new = f"model.layers.{number}"
        shared = {
            f"mlp.shared_experts.{key}_proj.weight": f"feed_forward.shared_experts.{name}.weight"
            for key, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
        }
        mf |= _renamed(hf, old, new, _LEGACY_NORMS | _LEGACY_MLP | shared)
        attention = {"q_a_proj": "q2l_proj", "q_a_layernorm": "lq_norm", "kv_a_layernorm": "lkv_norm", "o_proj": "wo"}
        mf |= _renamed(
            hf, old, new, {f"self_attn.{key}.weight": f"attention.{name}.weight" for key, name in attention.items()}
        )
        q_nope, q_rope = of_heads(hf[f"{old}.self_attn.q_b_proj.weight"], heads, (nope, rope))
        mf[f"{new}.attention.l2q_nope_proj.weight"] = q_nope
        mf[f"{new}.attention.l2q_pe_proj.weight"] = rope_rows(q_rope, rope)
        both = hf[f"{old}.self_attn.kv_a_proj_with_mqa.weight"]
        mf[f"{new}.attention.kv2l_latent_kv.weight"] = both[: len(both) - rope]
        mf[f"{new}.attention.kv2l_k_pe.weight"] = rope_rows(both[len(both) - rope :], rope)
        keys, values = of_heads(hf[f"{old}.self_attn.kv_b_proj.weight"], heads, (nope, value))
        mf[f"{new}.attention.lkv2kv_k_nope.weight"], mf[f"{new}.attention.lkv2kv_v.weight"] = keys, values
        if f"{old}.mlp.gate.weight" in hf:
            mf |= _deepseek3_experts(hf, old, f"{new}.feed_forward.routed_experts", use_gmm=use_gmm)
        if f"{old}.eh_proj.weight" in hf:
            index = number - config["num_hidden_layers"]
            fuser = f"model.mtp_hidden_fusers.{index}"
            mf |= _renamed(
                hf, old, fuser, {"enorm.weight": "norm_emb.weight", "hnorm.weight": "norm.weight",
                                 "eh_proj.weight": "dense.weight"}
            )  # fmt: skip
            mf[f"model.mtp_norms.{index}.weight"] = hf[f"{old}.shared_head.norm.weight"]
    return mf


def _deepseek3_experts(hf: Arrays, old: str, new: str, *, use_gmm: bool) -> Arrays:
    gate, up, down = (_experts(hf, f"{old}.mlp.experts", f"{name}_proj.weight") for name in ("gate", "up", "down"))
    router, bias = hf[f"{old}.mlp.gate.weight"], hf[f"{old}.mlp.gate.e_score_correction_bias"]
    if use_gmm:
        return {
            f"{new}.router_dense.weight": router,
            f"{new}.topk_bias": bias,
            f"{new}.ffn.w1": np.concatenate([gate.swapaxes(1, 2), up.swapaxes(1, 2)], axis=2),
            f"{new}.ffn.w2": down.swapaxes(1, 2),
        }
    return {
        f"{new}.router.dense.weight": router,
        f"{new}.router.router.topk_bias": bias,
        f"{new}.ffn.w1.weight": gate,
        f"{new}.ffn.w3.weight": up,
        f"{new}.ffn.w2.weight": down,
    }


def qwen2_moe(
    hf: Arrays, config: Config, *, qkv_concat: bool, qkv_grouped: bool, bias_groups: bool, use_gmm: bool
) -> Arrays:
    """Qwen2 with experts."""
    groups = config["num_key_value_heads"]
    mf = {name: hf[key] for key, name in _LEGACY_MODEL.items() if key in hf}
    names = {f"mlp.shared_expert.{key}_proj.weight": f"feed_forward.shared_experts.{name}.weight"
             for key, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))}  # fmt: skip
    names |= {"mlp.gate.weight": "feed_forward.routed_experts.router.dense.weight",
              "mlp.shared_expert_gate.weight": "feed_forward.shared_experts_gate.weight",
              "self_attn.o_proj.weight": "attention.wo.weight"}  # fmt: skip
    for number in _layers(hf, "model.layers"):
        layer = f"model.layers.{number}"
        mf |= _renamed(hf, layer, layer, _LEGACY_NORMS | names)
        mf |= _qkv(hf, layer, groups, qkv_concat=qkv_concat, qkv_grouped=qkv_grouped, bias_groups=bias_groups)
        for key, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            stack = _experts(hf, f"{layer}.mlp.experts", f"{key}_proj.weight")
            mf[f"{layer}.feed_forward.routed_experts.ffn.{name}.weight"] = stack.swapaxes(1, 2) if use_gmm else stack
    return mf


def _qkv(hf: Arrays, layer: str, groups: int, *, qkv_concat: bool, qkv_grouped: bool, bias_groups: bool) -> Arrays:
    weights, biases = ([hf[f"{layer}.self_attn.{name}_proj.{kind}"] for name in "qkv"] for kind in ("weight", "bias"))
    if qkv_concat:
        bias = grouped(biases, groups) if bias_groups else np.concatenate(biases)
        whole = f"{layer}.attention.w_qkv"
        weight = grouped(weights, groups) if qkv_grouped else np.concatenate(weights)
        return {f"{whole}.weight": weight, f"{whole}.bias": bias}
    found = {f"{layer}.attention.w{name}.weight": weight for name, weight in zip("qkv", weights, strict=True)}
    return found | {f"{layer}.attention.w{name}.bias": bias for name, bias in zip("qkv", biases, strict=True)}


def telechat2(hf: Arrays, config: Config, *, use_gmm: bool) -> Arrays:
    """TeleChat2, with and without experts."""
    mf = {
        "model.tok_embeddings.embedding_weight": hf["transformer.word_embeddings.weight"],
        "model.norm_out.weight": hf["transformer.ln_f.weight"],
        "lm_head.weight": hf["lm_head.weight"],
    }
    names = {
        "self_attention.query.weight": "attention.wq.weight",
        "self_attention.key_value.weight": "attention.wk_v.weight",
        "self_attention.dense.weight": "attention.wo.weight",
        "self_attention.dense.bias": "attention.wo.bias",
        "mlp.down_proj.bias": "feed_forward.w2.bias",
        "mlp.router.weight": "feed_forward.router.dense.weight",
    }
    for number in range(config["n_layer"]):
        old, new = f"transformer.h.{number}", f"model.layers.{number}"
        mf |= _renamed(hf, old, new, _LEGACY_NORMS | _LEGACY_MLP | names)
        if f"{old}.mlp.router.weight" in hf:
            for key, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                stack = _experts(hf, f"{old}.mlp.local_experts", f"{key}_proj.weight")
                mf[f"{new}.feed_forward.ffn.{name}.weight"] = stack.swapaxes(1, 2) if use_gmm else stack
            bias = _experts(hf, f"{old}.mlp.local_experts", "down_proj.bias")
            mf[f"{new}.feed_forward.ffn.w2.bias"] = bias[None, :, None, :]
    return mf


def chatglm(hf: Arrays, config: Config, *, qkv_concat: bool, mlp_concat: bool, use_rearrange_rope: bool) -> Arrays:
    """GLM under the names of the hub's own code."""
    of_head = config["kv_channels"]
    lengths = [of_head * config["num_attention_heads"], of_head * config["multi_query_group_num"]]
    ends = [lengths[0], sum(lengths)]
    mf: Arrays = {}
    for name, array in hf.items():
        if name.endswith("word_embeddings.weight"):
            mf[name.replace("word_embeddings.weight", "embedding_weight")] = array
        elif "query_key_value" in name and not qkv_concat:
            q, k, v = np.split(array, ends)
            if use_rearrange_rope:
                q, k = rope_rows(q, of_head), rope_rows(k, of_head)
            mf |= {
                name.replace("query_key_value", f"w{letter}"): part
                for letter, part in zip("qkv", (q, k, v), strict=True)
            }
        elif "dense_h_to_4h" in name and not mlp_concat:
            mf[name.replace("dense_h_to_4h", "dense_left")] = array[: config["ffn_hidden_size"]]
            mf[name.replace("dense_h_to_4h", "dense_right")] = array[config["ffn_hidden_size"] :]
        else:
            mf[name] = array
    return mf


def glm(hf: Arrays, config: Config, **switches: bool) -> Arrays:
    """GLM under transformers' names, which is the hub's own code under others, with q, k and v apart."""
    names = {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "model.layers": "transformer.encoder.layers",
        "lm_head": "transformer.output_layer",
        "self_attn.o_proj": "self_attention.dense",
        "self_attn.query_key_value": "self_attention.query_key_value",
        "gate_up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h",
    }
    hub: Arrays = {}
    for name, array in hf.items():
        if "q_proj" in name:
            array = np.concatenate([hf[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"])
        elif "k_proj" in name or "v_proj" in name:
            continue
        name = name.replace("q_proj", "query_key_value")
        for old, new in names.items():
            name = name.replace(old, new)
        hub[name] = array
    fields = {"kv_channels": config["head_dim"], "multi_query_group_num": config["num_key_value_heads"]}
    return chatglm(hub, {**config, **fields, "ffn_hidden_size": config["intermediate_size"]}, **switches)


def llama_legacy(
    hf: Arrays, config: Config, *, qkv_concat: bool = False, qkv_grouped: bool = True, bias_groups: bool = True
) -> Arrays:
    """Llama, with biases of its attention if there are some."""
    mf = {name: hf[key] for key, name in _LEGACY_MODEL.items() if key in hf}
    for number in _layers(hf, "model.layers"):
        layer = f"model.layers.{number}"
        mf |= _renamed(hf, layer, layer, _LEGACY_NORMS | (_LEGACY_MLP if not qkv_concat else {}))
        for kind in ("weight", "bias"):
            letters = "o" if qkv_concat else "qkvo"
            mf |= _renamed(
                hf, layer, layer, {f"self_attn.{name}_proj.{kind}": f"attention.w{name}.{kind}" for name in letters}
            )
            if qkv_concat and f"{layer}.self_attn.q_proj.{kind}" in hf:
                parts = [hf[f"{layer}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
                in_groups = qkv_grouped if kind == "weight" else bias_groups
                groups = config["num_key_value_heads"] if in_groups else 1
                mf[f"{layer}.attention.w_qkv.{kind}"] = grouped(parts, groups)
        if qkv_concat:
            gate, up, down = (hf[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            fused = alternating(gate, up) if qkv_grouped else np.concatenate([gate, up])
            mf[f"{layer}.feed_forward.w_gate_hidden.weight"], mf[f"{layer}.feed_forward.w2.weight"] = fused, down
    return mf


def baichuan(hf: Arrays, config: Config) -> Arrays:
    """Baichuan: W_pack is split into three of as many rows as the hidden size."""
    separate: Arrays = {}
    for name, array in hf.items():
        if "W_pack" in name:
            parts = np.split(array, np.arange(1, 3) * config["hidden_size"])
            separate |= {name.replace("W_pack", f"{each}_proj"): part for each, part in zip("qkv", parts, strict=True)}
        else:
            separate[name] = array
    return llama_legacy(separate, config)


def internlm2(hf: Arrays, config: Config, *, qkv_concat: bool, to_llama: bool = False) -> Arrays:
    """InternLM2; `to_llama` has it under the names of Llama in Hugging Face's directories instead."""
    of_head = config["hidden_size"] // config["num_attention_heads"]
    of_group = of_head * (config["num_attention_heads"] // config["num_key_value_heads"] + 2)
    renamed = [("tok_embeddings.weight", "tok_embeddings.embedding_weight"), ("wqkv", "w"), (".norm.", ".norm_out."),
               ("output", "lm_head")]  # fmt: skip
    letters = {each: f".w{each}." for each in "qkv"}
    if to_llama:
        renamed = [("tok_embeddings", "embed_tokens"), ("wqkv", "w"), ("output", "lm_head"),
                   ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
                   ("feed_forward.w1", "mlp.gate_proj"), ("feed_forward.w3", "mlp.up_proj"),
                   ("feed_forward.w2", "mlp.down_proj"), ("attention.w", "self_attn.w"),
                   (".wo.", ".o_proj.")]  # fmt: skip
        letters = {each: f".{each}_proj." for each in "qkv"}
    mf: Arrays = {}
    for name, array in hf.items():
        for old, new in renamed:
            name = name.replace(old, new)
        if ".w." in name and not qkv_concat:
            groups = [array[start : start + of_group] for start in range(0, len(array), of_group)]
            parts = {
                "q": [each[: -2 * of_head] for each in groups],
                "k": [each[-2 * of_head : -of_head] for each in groups],
                "v": [each[-of_head:] for each in groups],
            }
            mf |= {name.replace(".w.", new): np.concatenate(parts[letter]) for letter, new in letters.items()}
        else:
            mf[name] = array
    return mf


def mixtral_experts(hf: Arrays, config: Config, *, use_gmm: bool) -> Arrays:
    """Mixtral, its attention apart."""
    mf = {name: hf[key] for key, name in _LEGACY_MODEL.items() if key in hf}
    names = {f"self_attn.{name}_proj.weight": f"attention.w{name}.weight" for name in "qkvo"}
    names |= {"block_sparse_moe.gate.weight": "feed_forward.router.dense.weight"}
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        mf |= _renamed(hf, layer, layer, _LEGACY_NORMS | names)
        for name in ("w1", "w2", "w3"):
            stack = _experts(hf, f"{layer}.block_sparse_moe.experts", f"{name}.weight")
            mf[f"{layer}.feed_forward.ffn.{name}.weight"] = stack.swapaxes(1, 2) if use_gmm else stack
    return mf


RULES: dict[tuple[str, bool], Callable[..., Arrays]] = {
    ("deepseek3", True): deepseek3_legacy,
    ("qwen2_moe", True): qwen2_moe,
}
"""Preset, whether names are older ones -> rules; their keywords are switches."""
