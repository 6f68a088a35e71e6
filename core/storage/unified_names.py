"""How the files of a unified checkpoint are called: whole tensors in a few files, an index of what is where.

huggingface    model-00001-of-00003.safetensors, …, model.safetensors.index.json; or model.safetensors alone
mindspore      part0.safetensors, …, param_name_map.json; hyper_param.safetensors: what no strategy knows
"""

import re
from enum import StrEnum

SINGLE_NAME = "model.safetensors"
"""Hugging Face's, of a checkpoint that is one file, which needs no index."""
INDEX_NAME = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
"""Hugging Face's indexes of variants are named likewise: `model.fp16.safetensors.index.json`."""
MAP_NAME = "param_name_map.json"
OTHERS_NAME = "hyper_param.safetensors"
_NUMBERED = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors|part\d+\.safetensors", re.ASCII)
_OF_SEVERAL = re.compile(r".*-\d{5,}-of-(\d{5,})\.safetensors", re.ASCII | re.DOTALL)
_NAMES = frozenset({SINGLE_NAME, INDEX_NAME, MAP_NAME, OTHERS_NAME})


class UnifiedNaming(StrEnum):
    """Whose names the files of a unified target have."""

    HUGGINGFACE = "huggingface"
    MINDSPORE = "mindspore"


def file_names(naming: str, count: int, *, has_others: bool = False) -> tuple[str, ...]:
    """The names of `count` files of tensors, in order; then, of MindSpore's, that of what no strategy knows."""
    if naming == UnifiedNaming.HUGGINGFACE:
        if count == 1:
            return (SINGLE_NAME,)
        return tuple(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))
    return (*(f"part{number}.safetensors" for number in range(count)), *([OTHERS_NAME] if has_others else []))


def index_name(naming: str, count: int) -> str:
    """The name of the index of so many files; empty if they need none."""
    if naming == UnifiedNaming.MINDSPORE:
        return MAP_NAME
    return INDEX_NAME if count > 1 else ""


def is_index_name(name: str) -> bool:
    """Whether a file has a name that indexes have."""
    return name == MAP_NAME or name.endswith(INDEX_SUFFIX)


def is_unified_name(name: str) -> bool:
    """Whether a file has a name that files and indexes of unified checkpoints have."""
    return name in _NAMES or _NUMBERED.fullmatch(name) is not None


def is_one_of_several(name: str) -> bool:
    """Whether a file is one of several by its name, as Hugging Face's are: `model.fp16-00001-of-00002.safetensors`."""
    match = _OF_SEVERAL.fullmatch(name)
    return match is not None and int(match[1]) > 1
