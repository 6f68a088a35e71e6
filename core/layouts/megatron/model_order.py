"""The order in which Megatron-Core's modules have their parameters, which numbers the states of optimizers."""

import re

from reshard.core.errors import LayoutError

Order = tuple[int, ...]

_PARTS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        r"enorm\.",
        r"hnorm\.",
        r"eh_proj\.",
        r"(?:transformer_layer\.)?input_layernorm\.",
        r"(?:transformer_layer\.)?self_attention\.core_attention\.",
        r"(?:transformer_layer\.)?self_attention\.linear_proj\.",
        r"(?:transformer_layer\.)?self_attention\.linear_qkv\.",
        r"(?:transformer_layer\.)?self_attention\.linear_q_proj\.",
        r"(?:transformer_layer\.)?self_attention\.linear_q_down_proj\.",
        r"(?:transformer_layer\.)?self_attention\.linear_q_up_proj\.",
        r"(?:transformer_layer\.)?self_attention\.linear_kv_down_proj\.",
        r"(?:transformer_layer\.)?self_attention\.linear_kv_up_proj\.",
        r"(?:transformer_layer\.)?self_attention\.q_layernorm\.",
        r"(?:transformer_layer\.)?self_attention\.(?:k|kv)_layernorm\.",
        r"(?:transformer_layer\.)?pre_mlp_layernorm\.",
        r"(?:transformer_layer\.)?mlp\.router\.",
        r"(?:transformer_layer\.)?mlp\.experts\.(?:weight|linear_fc|local_experts\.)",
        r"(?:transformer_layer\.)?mlp\.shared_experts\.gate_",
        r"(?:transformer_layer\.)?mlp\.shared_experts\.linear_fc1\.",
        r"(?:transformer_layer\.)?mlp\.shared_experts\.linear_fc2\.",
        r"(?:transformer_layer\.)?mlp\.linear_fc1\.",
        r"(?:transformer_layer\.)?mlp\.linear_fc2\.",
        r"final_layernorm\.",
    )
)
"""Beginnings of names in a layer, after its number."""
_KINDS = ("layer_norm_weight", "layer_norm_bias", "weight", "bias", "expert_bias", "softmax_offset")
_OUTSIDE = (
    "embedding.word_embeddings.",
    "embedding.position_embeddings.",
    "decoder.layers.",
    "decoder.final_layernorm.",
    "mtp.layers.",
    "output_layer.",
)
_IN_LAYER = re.compile(r"(?:decoder|mtp)\.layers\.(\d+)\.(.+)", re.ASCII)
_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.)?(?:linear_fc)?(?:weight)?([12])?", re.ASCII)
_LAST = re.compile(r"(?:gate_)?([a-z_]+?)(\d*)", re.ASCII)


def order_in_model(name: str) -> Order:
    """Return what sorts the names of a chunk's parameters as Megatron's modules have them.

    Raises:
        LayoutError: it is not known where the module of this name is.
    """
    area = next((number for number, start in enumerate(_OUTSIDE) if name.startswith(start)), None)
    last = _LAST.fullmatch(name.rpartition(".")[2])
    layer = _IN_LAYER.fullmatch(name)
    if area is None or last is None:
        raise _unknown(name)
    kind = _KINDS.index(last[1]) if last[1] in _KINDS else None
    if kind is None:
        raise _unknown(name)
    number = int(last[2] or 0)
    if layer is None:
        return area, kind
    part = next((place for place, pattern in enumerate(_PARTS) if pattern.match(layer[2])), None)
    if part is None:
        raise _unknown(name)
    expert = _EXPERT.search(layer[2])
    inside = (int(expert[1] or 0), int(expert[2] or 0)) if expert else (0, 0)
    return area, int(layer[1]), part, *inside, kind, number


def _unknown(name: str) -> LayoutError:
    return LayoutError(f"where {name!r} is among the parameters of Megatron's modules is not known")
