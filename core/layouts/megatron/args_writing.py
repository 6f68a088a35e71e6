"""The arguments of a training, `args` of a checkpoint, as Megatron and MindSpeed want them of a model.

Megatron compares some with those of the training that loads it, and takes more from them with `--use-checkpoint-args`.
What follows from shapes is derived from them; the source's own arguments say the rest, if it has any.
"""

import re
from collections.abc import Iterator, Mapping

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.shapes import is_gated
from reshard.core.layouts.megatron.sizes import ParallelSizes
from reshard.core.layouts.megatron.spots import parse_name
from reshard.core.layouts.megatron.tensor_names import EMBEDDING, EXPERTS_SECOND, OUTPUT_LAYER
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.tensor.dtypes import DType, torch_name
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_NAMESPACE = Global("argparse", "Namespace")
_SINKS = "core_attention.softmax_offset"
_OF_TRANSFORMER_ENGINE = re.compile(
    r".*(?:\.layer_norm_weight|\.post_layernorm\.weight|\.experts\.linear_fc1\.weight\d+)", re.ASCII
)

_OF_PLACEMENT = frozenset(
    {
        *("num_layer_list", "noop_layers", "schedules_method", "num_virtual_stages_per_pipeline_rank"),
        *(
            "pipeline_model_parallel_layout",
            "moe_tp_extend_ep",
            "world_size",
            "data_parallel_size",
            "rank",
            "local_rank",
        ),
        *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    }
)
"""Arguments of how the source's training was divided, which the target's is not."""

Args = dict[str, object]


def namespace(args: Mapping[str, object]) -> PickledObject:
    """Return arguments as the object that a training pickles."""
    return PickledObject(_NAMESPACE, (), dict(args))


def parallel_args(sizes: ParallelSizes, ends: tuple[int, int], layers: int) -> Args:
    """Return the arguments of parallelism; `ends` are layers of the first and the last stage, 0: as many as others."""
    is_virtual = sizes.virtual > 1
    return {
        "tensor_model_parallel_size": sizes.tensor,
        "pipeline_model_parallel_size": sizes.pipeline,
        "virtual_pipeline_model_parallel_size": sizes.virtual if is_virtual else None,
        "num_layers_per_virtual_pipeline_stage": (
            layers // sizes.pipeline // sizes.virtual if is_virtual and not any(ends) else None
        ),
        "expert_model_parallel_size": sizes.expert,
        "expert_tensor_parallel_size": sizes.expert_tensor,
        "decoder_first_pipeline_num_layers": ends[0] or None,
        "decoder_last_pipeline_num_layers": ends[1] or None,
        "use_distributed_optimizer": False,
        "ckpt_format": "torch",
    }


def model_args(
    shapes: Mapping[str, Shape], dtypes: Mapping[str, DType], heads: int = 0, given: Mapping[str, object] | None = None
) -> Args:
    """Return the arguments of a model.

    Args:
        shapes: shapes of its parameters, by the names that Megatron gives them in the whole model.
        dtypes: their element types.
        heads: number of attention heads; 0: as shapes or `given` tell.
        given: the source's own arguments.

    Raises:
        LayoutError: something does not follow from these, or contradicts them.
    """
    known = {name: value for name, value in (given or {}).items() if name not in _OF_PLACEMENT}
    weights = {name: shape for name, shape in shapes.items() if not parse_name(name).slot}
    embedding = weights.get(EMBEDDING)
    if embedding is None or len(embedding) != 2:
        raise LayoutError(f"there is no {EMBEDDING!r} of a Megatron model")
    if OUTPUT_LAYER not in weights and known.get("untie_embeddings_and_output_weights") is True:
        raise LayoutError(
            f"there is no {OUTPUT_LAYER!r}, and its own arguments have untie_embeddings_and_output_weights: keep it, "
            "or Megatron uses the embedding in its place"
        )
    layers = sorted({layer for name in weights if (layer := parse_name(name).layer) is not None})
    return {
        **known,
        "num_layers": len(layers),
        "hidden_size": embedding[1],
        "padded_vocab_size": embedding[0],
        **_dtype_args(dtypes[EMBEDDING]),
        **_attention_args(weights, heads, known),
        **_mlp_args(weights, layers, known),
        "untie_embeddings_and_output_weights": OUTPUT_LAYER in weights,
        "add_position_embedding": True,
        "position_embedding_type": (
            "learned_absolute"
            if "embedding.position_embeddings.weight" in weights
            else known.get("position_embedding_type") or "rope"
        ),
        "normalization": "LayerNorm" if "decoder.final_layernorm.bias" in weights else "RMSNorm",
        "transformer_impl": "transformer_engine" if any(map(_OF_TRANSFORMER_ENGINE.fullmatch, weights)) else "local",
        "mtp_num_layers": _mtp_layers(weights) or None,
    }


def _dtype_args(dtype: DType) -> Args:
    name = torch_name(dtype)
    return {"params_dtype": Global("torch", str(name)), "bf16": name == "bfloat16", "fp16": name == "float16"}


def _attention_args(weights: Mapping[str, Shape], heads: int, known: Mapping[str, object]) -> Args:
    found = _Attention(weights)
    args: Args = {
        "add_qkv_bias": found.has("linear_qkv.bias"),
        "add_bias_linear": found.has("linear_proj.bias"),
        "qk_layernorm": found.has("q_layernorm.weight") or found.has("linear_q_up_proj.layer_norm_weight"),
    }
    if found.has(_SINKS):
        args["softmax_type"] = "learnable"
    given = known.get("num_attention_heads")
    if found.has("linear_kv_up_proj.weight"):
        return args | found.latent_args()
    return args | found.grouped_args(heads or (given if isinstance(given, int) else 0))


class _Attention:
    """The attention of the first layer, by the shapes of its weights."""

    def __init__(self, weights: Mapping[str, Shape]) -> None:
        self._weights = weights

    def has(self, name: str) -> bool:
        return f"decoder.layers.0.self_attention.{name}" in self._weights

    def _length(self, name: str, axis: int) -> int:
        full_name = f"decoder.layers.0.self_attention.{name}"
        shape = self._weights.get(full_name)
        if shape is None or len(shape) <= axis:
            raise LayoutError(f"there is no {full_name!r} of a Megatron model")
        return shape[axis]

    def grouped_args(self, heads: int) -> Args:
        """Arguments of attention whose queries, keys and values are one matrix."""
        rows, columns = self._length("linear_qkv.weight", 0), self._length("linear_proj.weight", 1)
        norm = self._length("q_layernorm.weight", 0) if self.has("q_layernorm.weight") else 0
        if not heads and self.has(_SINKS):
            heads = self._length(_SINKS, 0)
        if not heads and norm not in (0, columns):  # one of all heads together is as long as these
            heads = columns // norm
        if not heads:
            raise LayoutError(
                f"the number of attention heads does not follow from its shapes: give it, {option('attention_heads')} "
                "(num_attention_heads in config.json)"
            )
        size = columns // heads
        groups = (rows - columns) // (2 * size) if size else 0
        fits = columns == heads * size and rows == (heads + 2 * groups) * size and groups > 0 and heads % groups == 0
        if not fits or norm not in (0, size, columns):
            raise LayoutError(
                f"attention with {heads} heads cannot have matrices of {rows} rows (linear_qkv) and {columns} columns "
                f"(linear_proj): correct {option('attention_heads')}, or num_attention_heads in config.json"
            )
        return {
            "num_attention_heads": heads,
            "kv_channels": size,
            "group_query_attention": groups != heads,
            "num_query_groups": groups,
            "num_key_value_heads": groups,
        }

    def latent_args(self) -> Args:
        """Arguments of multi-latent attention: every size follows from shapes."""
        is_compressed = self.has("linear_q_up_proj.weight")
        queries = self._length("linear_q_up_proj.weight" if is_compressed else "linear_q_proj.weight", 0)
        rank, keys = self._length("linear_kv_up_proj.weight", 1), self._length("linear_kv_up_proj.weight", 0)
        values, rotary = self._length("linear_proj.weight", 1), self._length("linear_kv_down_proj.weight", 0) - rank
        heads = (queries - (keys - values)) // rotary if rotary > 0 else 0
        if heads < 1 or (keys - values) % heads or values % heads or queries != keys - values + heads * rotary:
            raise LayoutError("the matrices of its multi-latent attention do not go together")
        return {
            "multi_latent_attention": True,
            "num_attention_heads": heads,
            "q_lora_rank": self._length("linear_q_up_proj.weight", 1) if is_compressed else None,
            "kv_lora_rank": rank,
            "qk_head_dim": (keys - values) // heads,
            "qk_pos_emb_head_dim": rotary,
            "v_head_dim": values // heads,
        }


def _mlp_args(weights: Mapping[str, Shape], layers: list[int], known: Mapping[str, object]) -> Args:
    dense = [weights[name] for layer in layers if (name := f"decoder.layers.{layer}.mlp.linear_fc2.weight") in weights]
    routed = [layer for layer in layers if f"decoder.layers.{layer}.mlp.router.weight" in weights]
    gated = any(is_gated(name, weights) for name in weights)
    args: Args = {"swiglu": gated and known.get("quick_geglu") is not True, "num_experts": None}
    if dense:
        args["ffn_hidden_size"] = dense[0][1]
    if not routed:
        return args | {"moe_ffn_hidden_size": None, "moe_grouped_gemm": False}
    layer = f"decoder.layers.{routed[0]}.mlp."
    experts = [name for name in weights if name.startswith(layer) and EXPERTS_SECOND.fullmatch(name)]
    if not experts:
        raise LayoutError(f"layer {routed[0]} has a router, but no experts")
    name = experts[0]
    args["num_experts"] = weights[f"{layer}router.weight"][0]
    args["moe_ffn_hidden_size"] = weights[name][1]
    args.setdefault("ffn_hidden_size", known.get("ffn_hidden_size") or weights[name][1])
    args["moe_grouped_gemm"] = ".local_experts." not in name
    args["moe_layer_freq"] = 1 if routed == layers else [int(layer in routed) for layer in layers]
    shared = weights.get(f"{layer}shared_experts.linear_fc2.weight")
    if shared:
        args["moe_shared_expert_intermediate_size"] = shared[1]
    return args


def _mtp_layers(weights: Mapping[str, Shape]) -> int:
    return len(set(_mtp_numbers(weights)))


def _mtp_numbers(weights: Mapping[str, Shape]) -> Iterator[str]:
    for name in weights:
        if name.startswith("mtp.layers."):
            yield name.split(".")[2]
