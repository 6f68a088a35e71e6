"""The families whose tiny models transformers makes, one entry each: how a config.json of theirs is drawn.

What else a case needs, worlds of names, switches and spellings, is drawn from the preset's own document.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.hybrid_rules import hybrid
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays, deepseek3_legacy, glm, qwen2_moe

Config = dict[str, Any]
Rule = Callable[..., Arrays | None]
"""Arrays of Hugging Face's side, config.json, and switches as keywords -> those of a world; None if it has no rule."""


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        preset: its preset.
        model_type: transformers' name for it.
        fields: field of config.json -> its value, or a tuple of which one is drawn; each may be a function of the
            config.json of all others. They take the place of those in `_COMMON`.
        tied: embedding and head may be one.
        dtypes: of its weights.
        needs: "SWITCH=VALUE" -> fields of config.json that a model of that kind has.
        settles: "SWITCH=VALUE" -> other switches that have no other value then.
        rules: world -> its rules in numpy, a further judge.
        without: worlds that cannot have what transformers makes, with the reason.
        refused: "SWITCH=VALUE" of a spelling that cannot have its parameters.
        around: for a model with other parts: the config.json of the text model -> the fields around it, which is their
            `text_config`.
    """

    preset: str
    model_type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = True
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    needs: Mapping[str, Config] = field(default_factory=dict)
    settles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    around: Callable[[Config], Config] | None = None

    def drawn_config(self, draw: Random) -> Config:
        """Draw a config.json."""
        fields = {"model_type": self.model_type, **_COMMON, **self.fields}
        drawn = {name: draw.choice(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        config = {name: value for name, value in drawn.items() if not callable(value)}
        for name, value in drawn.items():
            if callable(value):
                config[name] = value(config)
        return {"tie_word_embeddings": self.tied and draw.random() < 0.3, **config}

    def whole_config(self, config: Config) -> Config:
        """Return the config.json of the model whose text model has this one."""
        if self.around is None:
            return config
        return {"tie_word_embeddings": config["tie_word_embeddings"], "text_config": config, **self.around(config)}


_SIZES = (16, 24, 32, 40, 48)
_COMMON: Config = {
    "vocab_size": (32, 40, 48, 56, 64),
    "num_attention_heads": tuple(lambda config, each=each: each * config["num_key_value_heads"] for each in (1, 2, 3)),
    "num_key_value_heads": (1, 2, 4),
    "hidden_size": _SIZES,
    "intermediate_size": _SIZES,
    "num_hidden_layers": (2, 3, 4),
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_HEADS = {"head_dim": 8}
_PARTS = {"hidden_size": lambda config: 8 * config["num_attention_heads"]}
"""For families whose heads are parts of the hidden size."""
_WIDE = {"hidden_size": lambda config: 16 * config["num_attention_heads"]}
_ALWAYS_TIED = {"tie_word_embeddings": True}
_BIASES = {"attention_bias": True}
_EXPERTS = (4, 12)  # as text, 10 comes before 2
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": (8, 16, 24)}
_QWEN_MOE = {**_MOE, "num_experts": _EXPERTS, "decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [0])}
_ALL_SPARSE = {"names=legacy": {"decoder_sparse_step": 1, "mlp_only_layers": []}}
_LOCAL_EXPERTS = {"num_local_experts": _EXPERTS, "num_experts_per_tok": 2}
_SHARED_MOE = {
    **_MOE,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": (1, 2),
    "first_k_dense_replace": (0, 1, 2),
}
_GLM_MOE = {**_SHARED_MOE, "use_qk_norm": (True, False), "attention_bias": (True, False)}
_ERNIE_MOE = {
    "moe_num_experts": _EXPERTS,
    "moe_k": 2,
    "moe_intermediate_size": (8, 16, 24),
    "moe_num_shared_experts": (0, 1, 2),
    "moe_layer_start_index": (0, 1),
}
_LATENT = {
    **_MOE,
    "n_routed_experts": _EXPERTS,
    "num_key_value_heads": 4,
    "num_attention_heads": 4,
    "q_lora_rank": (24, None),
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": (8, 16),
    "first_k_dense_replace": (0, 1),
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
}
_LATENT_NEEDS = {"mla_qkv_concat=true": {"q_lora_rank": 24}, "names=legacy": {"q_lora_rank": 24}}
"""MindFormers' converters know these with a q_lora_rank only."""


def _megatron(hf: Arrays, config: Config, **switches: Any) -> Arrays | None:
    if switches.get("mla_qkv_concat"):  # MindSpeed-LLM's
        return None
    norms = switches.get("megatron_norms", "transformer_engine")  # which some have only
    return megatron(hf, config, switches.get("megatron_experts", "sequential"), norms)


_MEGATRON = {"megatron": _megatron}
_KINDS = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
_DELTA_NET = {
    **_HEADS,
    "layer_types": lambda config: _KINDS[: config["num_hidden_layers"]],
    "linear_num_key_heads": (1, 2),
    "linear_num_value_heads": (2, 4),
    "linear_key_head_dim": (8, 16),
    "linear_value_head_dim": (4, 8),
    "linear_conv_kernel_dim": (2, 4),
}
_DELTA_NET_MOE = {**_DELTA_NET, **_MOE, "num_experts": _EXPERTS, "shared_expert_intermediate_size": (8, 16, 24)}
_ROUNDED_ALIKE = ("float32", "bfloat16")
_VISION = {"hidden_size": 16, "intermediate_size": 24, "patch_size": 4}


def _beside_vision(rule: Rule, prefix: str) -> Mapping[str, Rule]:
    """The rules of a text model whose names have another prefix; other parts keep theirs."""

    def rules(hf: Arrays, config: Config, **switches: Any) -> Arrays | None:
        text = {name.replace(prefix, "model.", 1): array for name, array in hf.items()
                if name.startswith((prefix, "lm_head."))}  # fmt: skip
        others = {name: array for name, array in hf.items() if not name.startswith((prefix, "lm_head."))}
        made = rule(text, config["text_config"], **switches)
        assert others
        return None if made is None else made | others

    return {"megatron": rules}


def _gemma3_vision(text: Config) -> Config:
    tower = {"model_type": "siglip_vision_model", "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8}
    return {"model_type": "gemma3", "mm_tokens_per_image": 4, "vision_config": _VISION | tower}


def _qwen_vision(model_type: str) -> Callable[[Config], Config]:
    tower = {"depth": 2, "num_heads": 2, "num_position_embeddings": 16, "deepstack_visual_indexes": []}
    return lambda text: {
        "model_type": model_type,
        "vision_config": _VISION | tower | {"out_hidden_size": text["hidden_size"]},
    }


FAMILIES = (
    Family("qwen3", "qwen3", _HEADS, rules=_MEGATRON),
    Family("qwen3", "qwen3", _HEADS, needs=dict.fromkeys(("names=mcore", "names=megatron"), _BIASES), rules=_MEGATRON),
    Family("qwen3_moe", "qwen3_moe", _HEADS | _QWEN_MOE,
           needs=dict.fromkeys(("names=mcore", "names=megatron"), _BIASES), rules=_MEGATRON),
    Family("qwen3_moe", "qwen3_moe", _HEADS | _QWEN_MOE, rules=_MEGATRON),
    Family("deepseek3", "deepseek_v3", _LATENT, dtypes=("float32", "bfloat16"), needs=_LATENT_NEEDS,
           rules={"legacy": deepseek3_legacy, **_MEGATRON}),
    Family("llama", "llama", _HEADS | _PARTS, rules=_MEGATRON),
    *(Family("llama", each, _HEADS | _PARTS,
             needs={"names=legacy": _BIASES, "names=megatron": _BIASES | {"mlp_bias": True}}, rules=_MEGATRON)
      for each in ("llama", "smollm3", "granite")),
    *(Family("llama", each, _HEADS | {"sliding_window": 4}, rules=_MEGATRON) for each in ("mistral", "ministral")),
    Family("llama", "cwm", _HEADS | _PARTS | {"sliding_window": 4}, rules=_MEGATRON),
    Family("qwen2", "qwen2", _PARTS, rules=_MEGATRON),
    Family("qwen2", "qwen2", _PARTS | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
           rules=_MEGATRON),
    Family("mixtral", "mixtral", _PARTS | _LOCAL_EXPERTS, tied=False, rules=_MEGATRON),
    Family("qwen2_moe", "qwen2_moe", _PARTS | _QWEN_MOE | {"shared_expert_intermediate_size": (8, 16, 24)}, tied=False,
           needs=_ALL_SPARSE, rules={"legacy": qwen2_moe, **_MEGATRON}),
    Family("glm4", "glm4", _HEADS | {"attention_bias": (True, False)}, rules=_MEGATRON),
    Family("glm", "glm", _HEADS | {"attention_bias": (True, False)},
           settles={"use_rearrange_rope=true": {"qkv_concat": "false"}}, rules={"legacy": glm, **_MEGATRON}),
    Family("phi3", "phi3", _PARTS | {"pad_token_id": 0}, rules=_MEGATRON),
    *(Family(each, kind, _HEADS | _WIDE | _ALWAYS_TIED | {"sliding_window": 4} | fields, rules=_MEGATRON)
      for each, kind in (("gemma", "gemma"), ("gemma2", "gemma2"), ("gemma3", "gemma3_text"))
      for fields in ({}, _BIASES)),
    *(Family("hunyuan_dense", "hunyuan_v1_dense", _HEADS | fields, rules=_MEGATRON) for fields in ({}, _BIASES)),
    *(Family("hunyuan_moe", "hunyuan_v1_moe", _HEADS | {"num_experts": _EXPERTS, "moe_topk": 2} | fields,
             rules=_MEGATRON) for fields in ({}, _BIASES)),
    Family("seed_oss", "seed_oss", _HEADS | {"attention_bias": (True, False), "attention_out_bias": (True, False),
                                             "mlp_bias": (True, False)}, rules=_MEGATRON),
    Family("ernie4_5", "ernie4_5", _HEADS | {"use_bias": (True, False)}, rules=_MEGATRON),
    Family("glm4_moe", "glm4_moe", _HEADS | _GLM_MOE, rules=_MEGATRON),
    Family("gpt_oss", "gpt_oss", _HEADS | _LOCAL_EXPERTS, rules=_MEGATRON, refused=("megatron_experts=grouped",)),
    Family("minimax", "minimax", _HEADS | _LOCAL_EXPERTS | {"layer_types": _DELTA_NET["layer_types"]}),
    Family("minimax_m2", "minimax_m2", _HEADS | _LOCAL_EXPERTS, rules=_MEGATRON),
    Family("exaone4", "exaone4", _HEADS, rules=_MEGATRON),
    Family("dots1", "dots1", _HEADS | _SHARED_MOE | {"attention_bias": (True, False)}, rules=_MEGATRON),
    *(Family("olmo2", each, _PARTS | {"attention_bias": (True, False)}, rules=_MEGATRON)
      for each in ("olmo2", "olmo3")),
    Family("olmoe", "olmoe", _PARTS | {"num_experts": _EXPERTS, "num_experts_per_tok": 2}, rules=_MEGATRON),
    Family("ernie4_5_moe", "ernie4_5_moe", _PARTS | _ERNIE_MOE, rules=_MEGATRON),
    Family("ernie4_5_moe", "ernie4_5_moe", _PARTS | _ERNIE_MOE | {"use_bias": True},
           without={"megatron": "its shared experts and its head have no biases"}),
    Family("deepseek_v32", "deepseek_v32", _LATENT | {"q_lora_rank": 24, "index_n_heads": (1, 2), "index_topk": 4,
           "index_head_dim": (12, 16)}, dtypes=_ROUNDED_ALIKE),
    Family("qwen3_next", "qwen3_next", _DELTA_NET_MOE | {"decoder_sparse_step": 1, "mlp_only_layers": ([], [1])},
           dtypes=_ROUNDED_ALIKE, rules={"megatron": hybrid}),
    Family("qwen3_5_moe", "qwen3_5_moe_text", _DELTA_NET_MOE, dtypes=_ROUNDED_ALIKE, rules={"megatron": hybrid}),
    Family("qwen3_5", "qwen3_5_text", _DELTA_NET, dtypes=_ROUNDED_ALIKE, rules={"megatron": hybrid}),
    Family("gemma3_vl", "gemma3_text", _HEADS | _WIDE | _ALWAYS_TIED | {"sliding_window": 4},
           around=_gemma3_vision, rules=_beside_vision(_megatron, "language_model.model.")),
    Family("qwen3_5_moe_vl", "qwen3_5_moe_text", _DELTA_NET_MOE, dtypes=_ROUNDED_ALIKE,
           around=_qwen_vision("qwen3_5_moe"), rules=_beside_vision(hybrid, "model.language_model.")),
    Family("qwen3_5_vl", "qwen3_5_text", _DELTA_NET, dtypes=_ROUNDED_ALIKE,
           around=_qwen_vision("qwen3_5"), rules=_beside_vision(hybrid, "model.language_model.")),
    # transformers has none of these, whose names and shapes are those of the model that it makes
    Family("internlm", "llama", _HEADS | _PARTS | _BIASES | {"bias": True}, rules=_MEGATRON),
    Family("pangu_embedded", "llama", _HEADS | _PARTS | _BIASES | {"bias": True}, rules=_MEGATRON),
    Family("telechat3", "llama", _HEADS | _PARTS, rules=_MEGATRON),
    Family("telechat3_moe", "deepseek_v3", _LATENT, dtypes=("float32", "bfloat16"), needs=_LATENT_NEEDS,
           rules=_MEGATRON),
)  # fmt: skip
UNKNOWN = ("baichuan", "chatglm", "internlm2", "telechat2")
"""Presets of models that only the hub's own code has."""
