"""`config.json` of a Hugging Face directory: which model the weights beside it are of."""

from collections.abc import Mapping
from typing import Any

from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.runtime.metadata import parse_json
from reshard.core.storage.links import check_links
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

CONFIG_NAME = "config.json"
_MAX_BYTES = 256 << 20
_OF_WHOLE_MODELS = ("architectures", "model_type", "quantization_config", "tie_word_embeddings")
"""Fields that models with several parts have outside of these; parts may have their own, which loaders ignore."""


def read_config(directory: Location) -> dict[str, Any]:
    """Read `config.json` of a directory.

    Raises:
        InputError: there is none, it is not a JSON object, or it is a link that leads out of the directory.
        StorageError: a transient failure.
    """
    location = directory.child(CONFIG_NAME)
    check_links(directory, [location])
    try:
        data = read_small_file(location, _MAX_BYTES)
    except StorageError as error:
        if is_transient(error):
            raise
        raise InputError(error.marked) from error
    return parse_config(data, location)


def parse_config(data: bytes, location: Location) -> dict[str, Any]:
    """Parse `config.json`; an InputError if it is not a JSON object."""
    config = parse_json(data, location, InputError)
    if not isinstance(config, dict):
        raise InputError(f"{location}: is not a model's configuration: it must be a JSON object")
    return config


def fields_of(config: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Return the fields of a part of a model, such as `text_config`; those beside it count where the part lacks them.

    What is said of the whole model stays so. An empty name, or one that config.json lacks: the fields as they are.
    """
    fields = config.get(part) if part else None
    if not isinstance(fields, dict):
        return config
    return {**config, **fields, **{name: config[name] for name in _OF_WHOLE_MODELS if name in config}}


def has_field(config: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """True if a field of config.json is set, to a number or to true; an empty name is always."""
    return bool(config.get(name, default)) if name else True


def layer_variant(config: Mapping[str, Any], part: str, layer: int) -> str:
    """Return which variant of a part a layer has by config.json, as presets call them; empty if it does not say it."""
    if part == "q" and "q_lora_rank" in config:
        return "low rank" if config["q_lora_rank"] else "whole"
    if part == "attention":
        return _attention_variant(config, layer)
    return _mlp_variant(config, layer) if part == "mlp" else ""


def _attention_variant(config: Mapping[str, Any], layer: int) -> str:
    """Which layers have which kind of attention: by a list, or every so many layers a full one."""
    kinds, count = config.get("layer_types"), config.get("num_hidden_layers")
    if isinstance(kinds, list) and layer < len(kinds):
        return str(kinds[layer])
    interval = config.get("full_attention_interval")
    if not isinstance(interval, int) or interval < 1 or not isinstance(count, int) or layer >= count:
        return ""
    return "linear_attention" if (layer + 1) % interval else "full_attention"


def _mlp_variant(config: Mapping[str, Any], layer: int) -> str:
    """Which layers have experts, as the families of DeepSeek, ERNIE and Qwen say it."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and layer < len(kinds):
        return str(kinds[layer])
    first = config.get("first_k_dense_replace")
    if isinstance(first, int):
        return "dense" if layer < first else "sparse"
    start = config.get("moe_layer_start_index")
    if isinstance(start, int):
        end, interval = config.get("moe_layer_end_index", -1), config.get("moe_layer_interval", 1)
        if not isinstance(end, int) or not isinstance(interval, int) or interval < 1:
            return ""
        is_within = start <= layer and (end == -1 or layer <= end)
        return "dense" if not is_within or (layer + 1) % interval else "sparse"
    step, only_dense = config.get("decoder_sparse_step"), config.get("mlp_only_layers")
    if not isinstance(step, int) or step < 1:
        return ""
    is_dense = isinstance(only_dense, list) and layer in only_dense
    return "dense" if is_dense or (layer + 1) % step else "sparse"


def is_tied(config: Mapping[str, Any]) -> bool:
    """True if the head is the embedding, by config.json."""
    return bool(config.get("tie_word_embeddings", False))


def text_field(config: Mapping[str, Any], name: str) -> str:
    """Return a field of config.json that is a text; empty if it is not there, or something else."""
    value = config.get(name)
    return value if isinstance(value, str) else ""
