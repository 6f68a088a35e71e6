"""peft's own merge of a random adapter, in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard, so that their agreement means something.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

_LINEAR = ["q_proj", "v_proj", "down_proj"]
_KINDS: dict[str, dict[str, Any]] = {
    "linear": {"target_modules": _LINEAR},
    "all": {"target_modules": [*_LINEAR, "k_proj", "o_proj", "gate_proj", "up_proj"]},
    "stabilized": {"target_modules": _LINEAR, "use_rslora": True},
    "patterns": {"target_modules": _LINEAR, "rank_pattern": {"v_proj": 8}, "alpha_pattern": {r".*\.0\..*q_proj": 3}},
    "embedding": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    "biases": {"target_modules": ["q_proj", "o_proj"], "bias": "all"},
    "experts": {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]},
}


def merge(directory: str, kind: str, dtype: str, rank: int, seed: int, exact: bool = False) -> Mapping[str, Any]:
    """Write a base, an adapter of random values, and what peft makes of both; `exact` products in any order of sums."""
    torch.manual_seed(seed)
    place = Path(directory)
    model = _model(kind).to(getattr(torch, dtype))
    model.save_pretrained(place / "base")
    config = peft.LoraConfig(r=rank, lora_alpha=rank * 1.25, task_type="CAUSAL_LM", **_KINDS[kind])
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or parameter.requires_grad:
                values = torch.randint_like(parameter, -3, 4) / 4 if exact else torch.randn_like(parameter) * 0.05
                parameter.copy_(values)
    adapted.save_pretrained(place / "adapter")
    return apply(directory, "adapter", dtype, "merged")


def apply(directory: str, adapter: str, dtype: str, to: str) -> Mapping[str, Any]:
    """Write what peft makes of a base and an adapter, and return the parameters that it misses in the adapter."""
    place = Path(directory)
    base = transformers.AutoModelForCausalLM.from_pretrained(place / "base", dtype=getattr(torch, dtype))
    adapted = peft.PeftModel.from_pretrained(base, place / adapter)
    trained = sorted(name for name, _ in adapted.named_parameters() if "lora_" in name)
    adapted.merge_and_unload().save_pretrained(place / to)
    return {"trained": trained}


def _model(kind: str) -> Any:
    sizes = {
        "vocab_size": 96,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 80,
        "tie_word_embeddings": False,
    }
    if kind == "experts":
        experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1}
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **experts))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attention_bias=kind == "biases"))


OPERATIONS = {"merge": merge, "apply": apply}
