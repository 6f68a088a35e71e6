"""File names of unified checkpoints: whole tensors in a few files, and an index of their places.

huggingface    model-00001-of-00003.safetensors, …, model.safetensors.index.json; or model.safetensors alone
mindspore      part0.safetensors, …, param_name_map.json; hyper_param.safetensors: parameters without a strategy
peft           adapter_model.safetensors, adapter_config.json: an adapter alone, always in a single file
"""

import re
from enum import StrEnum

from reshard.core.layouts.weight_maps import OTHERS_NAME

SINGLE_NAME = "model.safetensors"
"""Hugging Face's name of a checkpoint in a single file, which needs no index."""
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = f"model{INDEX_SUFFIX}"
"""Also ends the names of Hugging Face's indexes of variants: `model.fp16.safetensors.index.json`."""
MAP_NAME = "param_name_map.json"
PEFT = "peft"
"""The naming of an adapter's files: nobody asks for it, since its tensors' names are PEFT's."""
ADAPTER_NAME = "adapter_model.safetensors"
ADAPTER_CONFIG_NAME = "adapter_config.json"
COMPANION_NAMES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "chat_template.jinja"),
    *(f"quant_model_description{kind}.json" for kind in ("", "_w8a8", "_w8a8_dynamic", "_w8a16", "_w4a8_dynamic")),
)
"""Files of a Hugging Face directory beside its weights: the model's configuration, its tokenizer, and what ModelSlim
says of quantized weights."""
MAX_COMPANION_BYTES = 256 << 20
"""Limit of one of them; the largest tokenizers have 40 MB."""
_NUMBERED = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors|part\d+\.safetensors", re.ASCII)
_NAMES = frozenset({SINGLE_NAME, INDEX_NAME, MAP_NAME, OTHERS_NAME})


class UnifiedNaming(StrEnum):
    """Naming schemes of a unified target's files."""

    HUGGINGFACE = "huggingface"
    MINDSPORE = "mindspore"


def file_names(naming: str, count: int, *, has_others: bool = False) -> tuple[str, ...]:
    """Return the names of `count` files of tensors, then of MindSpore's file of parameters without a strategy."""
    if naming == PEFT:
        return (ADAPTER_NAME,)
    if naming == UnifiedNaming.HUGGINGFACE:
        if count == 1:
            return (SINGLE_NAME,)
        return tuple(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))
    return (*(f"part{number}.safetensors" for number in range(count)), *([OTHERS_NAME] if has_others else []))


def index_name(naming: str, count: int) -> str:
    """Return the name of the index of `count` files; empty if they need none."""
    if naming == UnifiedNaming.MINDSPORE:
        return MAP_NAME
    return INDEX_NAME if count > 1 else ""


def is_index_name(name: str) -> bool:
    """True for the name of an index."""
    return name == MAP_NAME or name.endswith(INDEX_SUFFIX)


def is_unified_name(name: str) -> bool:
    """True for the name of a unified checkpoint's file or index."""
    return name in _NAMES or _NUMBERED.fullmatch(name) is not None
