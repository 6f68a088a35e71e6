"""LoRA adapters: their configurations, with the names and shapes of their tensors."""

import json
from typing import Any

from reshard.core.changes.lora.pairing import modules_of, pair
from reshard.core.changes.lora.settings import parse_peft_config
from reshard.core.changes.model_config import parse_config
from reshard.core.errors import InputError, raise_problems
from reshard.core.plan.regular_expressions import check_expressions
from reshard.core.storage.urls import parse_url
from tests.fuzz.mutations import damaged_json
from tests.fuzz.parsers import Parser

_ORIGIN = "hostile.json"
_CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8.5, "bias": "lora_only", "use_rslora": True}
_PATTERNS: dict[str, Any] = {"rank_pattern": {r"^layers\.0.*q": 2}, "alpha_pattern": {"k|v": 16}}
_PLAIN = {
    "base_model.model.layers.0.q.lora_A.weight": [2, 8],
    "base_model.model.layers.0.q.lora_B.weight": [6, 2],
    "base_model.model.embed.lora_embedding_A": [4, 32],
    "base_model.model.embed.lora_embedding_B": [8, 4],
    "base_model.model.embed.base_layer.weight": [32, 8],
    "base_model.model.layers.0.q.base_layer.bias": [6],
    "base_model.model.head.weight": [32, 8],
}
_EXPERTS = {
    "base_model.model.mlp.experts.base_layer.lora_A.weight": [12, 8],
    "base_model.model.mlp.experts.base_layer.lora_B.weight": [6, 12],
    "base_model.model.mlp.experts.lora_A.weight": [12, 3],
    "base_model.model.mlp.experts.lora_B.weight": [8, 12],
}


def _seeds() -> list[bytes]:
    saved = {"modules_to_save": ["embed", "head"], "fan_in_fan_out": False}
    fused = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    cases = [(_CONFIG | _PATTERNS | saved, _PLAIN), (_CONFIG | fused, _EXPERTS)]
    return [json.dumps({"config": config, "shapes": shapes}).encode() for config, shapes in cases]


def _parse(data: bytes) -> None:
    document = parse_config(data, parse_url(f"memory:///fuzz/{_ORIGIN}"))
    config, shapes = (document.get(name) for name in ("config", "shapes"))
    settings = parse_peft_config(config if isinstance(config, dict) else {}, _ORIGIN)
    tensors = {
        name: tuple(shape)
        for name, shape in (shapes if isinstance(shapes, dict) else {}).items()
        # as headers of files have them
        if isinstance(shape, list) and all(type(length) is int and 0 <= length < 2**63 for length in shape)
    }
    check_expressions(settings.patterns, modules_of(tensors))
    raise_problems(InputError, _ORIGIN, pair(tensors, settings).problems)


# as many experts as the limit allows may be of no more than two shapes
ADAPTER = Parser("adapter", _seeds, _parse, (damaged_json,), memory_factor=2**17)
