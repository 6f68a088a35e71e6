"""What `reshard doctor` says of a model's directory is what transformers reports on loading it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.mindspore_process import TORCH_PYTHON, TransformersJudge
from tests.support.diagnosed import diagnose
from tests.support.families import ALL_FAMILIES
from tests.support.model_directories import Rename, changed_directory

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "vocab_size": 96,
    "pad_token_id": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "num_key_value_heads": 4,
}
ERNIE = {
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 16,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral"},
    "qwen2, tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2_moe": {"model_type": "qwen2_moe", **EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen2_moe without biases": {"model_type": "qwen2_moe", **EXPERTS, "qkv_bias": False},
    "qwen3 with biases": {"model_type": "qwen3", "attention_bias": True},
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": [0, 2]},
    "glm4": {"model_type": "glm4"},
    "glm": {"model_type": "glm"},
    "glm without biases": {"model_type": "glm", "attention_bias": False},
    "phi3": {"model_type": "phi3"},
    "hunyuan with biases": {"model_type": "hunyuan_v1_dense", "attention_bias": True},
    "smollm3 with biases": {"model_type": "smollm3", "attention_bias": True, "mlp_bias": True},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "qwen3_next": {"model_type": "qwen3_next", **EXPERTS, **DELTA_NET, "mlp_only_layers": [1]},
    "qwen3_next with biases": {"model_type": "qwen3_next", **EXPERTS, **DELTA_NET, "attention_bias": True},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **EXPERTS, **DELTA_NET},
    "qwen3_5": {"model_type": "qwen3_5_text", **DELTA_NET},
    "hunyuan_moe": {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2, "attention_bias": True},
    "ernie4_5_moe with biases": {"model_type": "ernie4_5_moe", "use_bias": True, **ERNIE},
    "deepseek_v32": {"model_type": "deepseek_v32", **LATENT},
}
"""Models that the fixtures do not have."""
CHANGES: dict[str, tuple[Rename, dict[str, Any]]] = {
    "unchanged": (lambda name: name, {}),
    "prefix lost": (lambda name: name.removeprefix("model."), {}),
    "prefix doubled": (lambda name: f"model.{name}", {}),
    "prefix of a module": (lambda name: f"module.{name}", {}),
    "layer lost": (lambda name: None if ".layers.0." in name else name, {}),
    "head lost": (lambda name: None if name == "lm_head.weight" else name, {}),
    "embedding lost": (lambda name: None if "embed_tokens" in name else name, {}),
    "matrices renamed": (lambda name: name.replace("o_proj", "dense").replace("q_proj", "query"), {}),
    "layer too many": (lambda name: name.replace("model.norm.", "model.layers.99.input_layernorm."), {}),
    "more rows": (lambda name: name, {"vocab_size": 1000}),
    "tied": (lambda name: name, {"tie_word_embeddings": True}),
    "not tied": (lambda name: name, {"tie_word_embeddings": False}),
}


def fused(names: list[str]) -> set[str]:
    """Names of parameters with experts as transformers has them in memory, whatever the directory has."""
    found = (name.replace("block_sparse_moe", "mlp") for name in names)
    found = (name.replace("mlp.moe_statics", "mlp.gate.moe_statics") for name in found)
    found = (re.sub(r"\.experts\.\d+\.(gate_proj|up_proj|w1|w3)\.weight$", ".experts.gate_up_proj", e) for e in found)
    return {re.sub(r"\.experts\.\d+\.(down_proj|w2)\.weight$", ".experts.down_proj", name) for name in found}


def check(directory: Path, ask: Callable[..., Any]) -> None:
    """Compare both reports; a tied head that is missing because its embedding is counts as the embedding only."""
    loaded = diagnose(str(directory)).loaded
    assert loaded is not None
    expected = ask("loading_report", directory=str(directory))
    missing = fused(expected["missing"])
    if "model.embed_tokens.weight" in missing and "lm_head.weight" not in loaded.missing:
        missing.discard("lm_head.weight")
    assert fused(list(loaded.missing)) == missing
    assert fused([*loaded.dropped, *loaded.speculative]) == fused(expected["dropped"])
    assert fused(list(loaded.mismatched)) == fused(expected["mismatched"])


@pytest.mark.slow
@pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")
def test_what_doctor_finds_is_what_transformers_reports(transformers: TransformersJudge, tmp_path: Path) -> None:
    models = {str(family): family.hf for family in ALL_FAMILIES}
    for number, (name, config) in enumerate(MODELS.items()):
        models[name] = tmp_path / f"model{number}"
        transformers.ask("make_model", directory=str(models[name]), config=SIZES | config, dtype="float32", seed=number)
    for number, (model, source) in enumerate(models.items()):
        # each change of some models, for transformers loads each directory
        changes = {change: made for place, (change, made) in enumerate(CHANGES.items()) if (place - number) % 4 == 0}
        for change, (rename, config) in (changes | {"unchanged": CHANGES["unchanged"]}).items():
            directory = changed_directory(source, tmp_path / f"{model}, {change}", rename, **config)
            check(directory, transformers.ask)
