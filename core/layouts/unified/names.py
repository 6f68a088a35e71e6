"""File names of unified checkpoints: whole tensors in a few files, and an index of their places.

huggingface    model-00001-of-00003.safetensors, …, model.safetensors.index.json; or model.safetensors alone
mindspore      part0.safetensors, …, param_name_map.json; hyper_param.safetensors: parameters without a strategy
"""

import re
from enum import StrEnum

from reshard.core.runtime.records import Record

SINGLE_NAME = "model.safetensors"
"""Hugging Face's name of a checkpoint in a single file, which needs no index."""
INDEX_NAME = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
"""Also ends the names of Hugging Face's indexes of variants: `model.fp16.safetensors.index.json`."""
MAP_NAME = "param_name_map.json"
OTHERS_NAME = "hyper_param.safetensors"
COMPANION_NAMES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "chat_template.jinja"),
)
"""Files of a Hugging Face directory beside its weights: the model's configuration, and its tokenizer."""
MAX_COMPANION_BYTES = 256 << 20
"""Limit of one of them; the largest tokenizers have 40 MB."""
_NUMBERED = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors|part\d+\.safetensors", re.ASCII)
_OF_SEVERAL = re.compile(r"(?P<stem>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.safetensors", re.ASCII | re.DOTALL)
_NAMES = frozenset({SINGLE_NAME, INDEX_NAME, MAP_NAME, OTHERS_NAME})


class UnifiedNaming(StrEnum):
    """Naming schemes of a unified target's files."""

    HUGGINGFACE = "huggingface"
    MINDSPORE = "mindspore"


def file_names(naming: str, count: int, *, has_others: bool = False) -> tuple[str, ...]:
    """Return the names of `count` files of tensors, then of MindSpore's file of parameters without a strategy."""
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


class ShardName(Record):
    """The parsed name of one of several files in Hugging Face's scheme: `model.fp16-00001-of-00002.safetensors`."""

    stem: str
    number_text: str
    count_text: str

    @property
    def number(self) -> int:
        """The number of the file, mostly from 1 on."""
        return int(self.number_text)

    @property
    def count(self) -> int:
        """The number of files of the set."""
        return int(self.count_text)

    def name_of(self, number: int) -> str:
        """The name of the file of another number; numbers and counts may have different zeros, as DeepSeek-V3's."""
        return f"{self.stem}-{number:0{len(self.number_text)}}-of-{self.count_text}.safetensors"


def parse_shard(name: str) -> ShardName | None:
    """Parse the name of one of several files; None for any other name."""
    match = _OF_SEVERAL.fullmatch(name)
    if match is None or int(match["count"]) < 2:
        return None
    return ShardName(match["stem"], match["number"], match["count"])
