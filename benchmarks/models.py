"""What is converted in the benchmarks: parameters, how both sides cut them, and the values that they hold.

Values are cheap and unmistakable: one pool of random floats, repeated without end, into which every parameter looks at
another place. The pool's length is a prime, so no row, column or shard of a tensor repeats another, and a byte in the
wrong place shows.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape, TensorSlice

FLOAT, BFLOAT16 = dtype_from_name("Float32"), dtype_from_name("BFloat16")
MEGATRON_TENSOR, MEGATRON_STAGES = 4, 2
"""How Megatron's ranks divide a model."""
_POOL_LENGTH = 2**24 - 3
_BLOCK_ELEMENTS = 2**20


class Side(StrEnum):
    """Which of the two checkpoints of a conversion."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True)
class Parameter:
    """A float32 parameter of up to three axes, and how the two sides cut it; one of three, by the first only."""

    name: str
    shape: Shape
    source: ParameterLayout
    target: ParameterLayout

    def layout(self, side: Side) -> ParameterLayout:
        """How a side cuts it."""
        return self.source if side is Side.SOURCE else self.target

    def box(self, side: Side, rank: int) -> TensorSlice:
        """The part of it that a rank of a side holds."""
        return self.layout(side).shard_grid(len(self.shape)).box_of(rank, self.shape)


@dataclass(frozen=True)
class Exported:
    """A parameter of an export: `part` returns its values, of those of a whole source parameter."""

    name: str
    source: Parameter
    part: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Export:
    """What a checkpoint becomes in a Hugging Face directory.

    Attributes:
        options: the family's preset and its switches, as options.
        config: content of the family's config.json.
    """

    options: tuple[str, ...]
    config: Mapping[str, object]
    parameters: tuple[Exported, ...]


@dataclass(frozen=True)
class Model:
    """All parameters of a checkpoint; with an `export`, they become others, which are whole."""

    parameters: tuple[Parameter, ...]
    export: Export | None = None

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all whole parameters."""
        return sum(math.prod(parameter.shape) for parameter in self.parameters) * FLOAT.itemsize

    def ranks(self, side: Side) -> range:
        """The ranks of a side."""
        return range(self.parameters[0].layout(side).device_count)

    def shard_bytes(self, side: Side, rank: int) -> int:
        """Bytes of all that a rank holds."""
        return sum(parameter.box(side, rank).size for parameter in self.parameters) * FLOAT.itemsize

    def first_with_same_content(self, side: Side) -> dict[int, int]:
        """Every rank of a side -> the lowest rank that holds the same."""
        firsts: dict[tuple[TensorSlice, ...], int] = {}
        return {
            rank: firsts.setdefault(tuple(parameter.box(side, rank) for parameter in self.parameters), rank)
            for rank in self.ranks(side)
        }

    def strategy(self, side: Side) -> Strategy:
        """The strategy of a side, as its ranks would save it."""
        layouts = {parameter.name: parameter.layout(side) for parameter in self.parameters}
        operator = OperatorStrategy("Default/model/MatMul-op0", 0, ((1, 1), (1, 1)))
        return Strategy((StageStrategy(0, layouts, (operator,)),), origin="the benchmarks", merged=False)


def blocks(parameter: Parameter, box: TensorSlice) -> Iterator[np.ndarray]:
    """The values of a box of a parameter, in C order: uint8 arrays of some MiB."""
    width = parameter.shape[-1] if len(parameter.shape) > 1 else 1
    first_column, columns = (box.start[-1], box.shape[-1]) if len(parameter.shape) > 1 else (0, 1)
    matrix_rows = math.prod(parameter.shape[1:-1])  # cut along the first axis only
    first_row, last_row = box.start[0] * matrix_rows, box.stop[0] * matrix_rows
    place = zlib.crc32(parameter.name.encode())
    rows_together = max(1, min(_POOL_LENGTH // width, _BLOCK_ELEMENTS // columns))
    for row in range(first_row, last_row, rows_together):
        rows = min(rows_together, last_row - row)
        start = (place + row * width + first_column) % _POOL_LENGTH
        strides = (width * FLOAT.itemsize, FLOAT.itemsize)
        window = as_strided(_pool()[start:], (rows, columns), strides, writeable=False)
        yield np.ascontiguousarray(window).reshape(-1).view(np.uint8)


def whole_values(parameter: Parameter) -> np.ndarray:
    """All values of a parameter, in its shape."""
    return (
        np.concatenate(list(blocks(parameter, TensorSlice.whole(parameter.shape))))
        .view(np.float32)
        .reshape(parameter.shape)
    )


@cache
def _pool() -> np.ndarray:
    """The pool twice over: a window that begins in the first need not wrap around."""
    return np.tile(np.random.default_rng(1).random(_POOL_LENGTH, dtype=np.float32), 2)


def cut_by(axis: int | None, devices: int, axis_count: int = 2) -> ParameterLayout:
    """One axis cut over all devices; None: not cut."""
    return ParameterLayout((devices,), tuple((0,) if axis == at else () for at in range(axis_count)), nested=True)


def matrices(count: int, shape: Shape, source: ParameterLayout, target: ParameterLayout) -> Model:
    """`count` matrices of one shape, all cut alike."""
    return Model(tuple(Parameter(f"blocks.{number}.weight", shape, source, target) for number in range(count)))


def transformer(hidden: int, layers: int, feed_forward: int, vocabulary: int) -> Model:
    """A llama with its two Adam moments: 8 ranks (2 data x 4 model parallel) to 4 (2 x 2, optimizer parallel)."""
    weights = _transformer_weights(hidden, layers, feed_forward, vocabulary)
    return Model(
        tuple(
            Parameter(f"{prefix}{name}", shape, _megatron(2, 4, shape, axis), _megatron(2, 2, shape, axis, 2))
            for prefix in ("", "adam_m.", "adam_v.")
            for name, shape, axis in weights
        )
    )


def fused_transformer(hidden: int, layers: int, feed_forward: int, vocabulary: int) -> Model:
    """A llama's weights on 8 ranks (2 data x 4 model parallel), q, k and v in one, gate and up row by row in another.

    Heads have 128 elements; two of q share one of k and v.
    """
    head = 128
    groups = hidden // head // 2
    export = _Exporting(2, 4)
    export.add("model.tok_embeddings.embedding_weight", (vocabulary, hidden), 0, {"model.embed_tokens.weight": _same})
    for layer in range(layers):
        mine, theirs = f"model.layers.{layer}", f"model.layers.{layer}"
        heads = {
            f"{theirs}.self_attn.{name}_proj.weight": partial(_of_groups, groups, head * start, head * stop)
            for name, start, stop in (("q", 0, 2), ("k", 2, 3), ("v", 3, 4))
        }
        export.add(f"{mine}.attention.w_qkv.weight", (groups * 4 * head, hidden), 0, heads)
        export.add(f"{mine}.attention.wo.weight", (hidden, hidden), 1, {f"{theirs}.self_attn.o_proj.weight": _same})
        in_turn = {
            f"{theirs}.mlp.{name}_proj.weight": partial(_of_groups, feed_forward, number, number + 1)
            for number, name in enumerate(("gate", "up"))
        }
        export.add(f"{mine}.feed_forward.w_gate_hidden.weight", (2 * feed_forward, hidden), 0, in_turn)
        export.add(
            f"{mine}.feed_forward.w2.weight", (hidden, feed_forward), 1, {f"{theirs}.mlp.down_proj.weight": _same}
        )
        export.add(f"{mine}.attention_norm.weight", (hidden,), None, {f"{theirs}.input_layernorm.weight": _same})
        export.add(f"{mine}.ffn_norm.weight", (hidden,), None, {f"{theirs}.post_attention_layernorm.weight": _same})
    export.add("model.norm_out.weight", (hidden,), None, {"model.norm.weight": _same})
    export.add("lm_head.weight", (vocabulary, hidden), 0, {"lm_head.weight": _same})
    config = _config("llama", hidden, layers, feed_forward, vocabulary, hidden // head, groups, head)
    causal = {"architectures": ["LlamaForCausalLM"]}
    return export.model(("--preset", "llama", "--switch", "qkv_grouped=true"), config | causal)


def experts_transformer(hidden: int, layers: int, experts: int, expert_hidden: int, vocabulary: int) -> Model:
    """A Qwen3-MoE's weights on 8 ranks (2 data x 4 expert parallel): the experts of a layer are stacked, transposed."""
    head = 128
    heads = groups = hidden // head
    export = _Exporting(2, 4)
    export.add("embedding.word_embeddings.weight", (vocabulary, hidden), 0, {"model.embed_tokens.weight": _same})
    for layer in range(layers):
        mine, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        parts = {
            f"{theirs}.self_attn.{name}_proj.weight": partial(_of_groups, groups, head * number, head * (number + 1))
            for number, name in enumerate("qkv")
        }
        export.add(f"{mine}.self_attention.linear_qkv.weight", (3 * hidden, hidden), 0, parts)
        attention_output = {f"{theirs}.self_attn.o_proj.weight": _same}
        export.add(f"{mine}.self_attention.linear_proj.weight", (hidden, hidden), 1, attention_output)
        for name, other in (("q", "q_norm"), ("k", "k_norm")):
            norm = {f"{theirs}.self_attn.{other}.weight": _same}
            export.add(f"{mine}.self_attention.{name}_layernorm.weight", (head,), None, norm)
        export.add(f"{mine}.input_layernorm.weight", (hidden,), None, {f"{theirs}.input_layernorm.weight": _same})
        norm = {f"{theirs}.post_attention_layernorm.weight": _same}
        export.add(f"{mine}.pre_mlp_layernorm.weight", (hidden,), None, norm)
        export.add(f"{mine}.mlp.router.weight", (experts, hidden), None, {f"{theirs}.mlp.gate.weight": _same})
        halves = {
            f"{theirs}.mlp.experts.{expert}.{name}_proj.weight": partial(
                _of_expert, expert, expert_hidden * number, expert_hidden * (number + 1)
            )
            for expert in range(experts)
            for number, name in enumerate(("gate", "up"))
        }
        export.add(f"{mine}.mlp.experts.weight1", (experts, hidden, 2 * expert_hidden), 0, halves)
        down = {
            f"{theirs}.mlp.experts.{expert}.down_proj.weight": partial(_of_expert, expert, 0, hidden)
            for expert in range(experts)
        }
        export.add(f"{mine}.mlp.experts.weight2", (experts, expert_hidden, hidden), 0, down)
    export.add("decoder.final_layernorm.weight", (hidden,), None, {"model.norm.weight": _same})
    export.add("output_layer.weight", (vocabulary, hidden), 0, {"lm_head.weight": _same})
    config = _config("qwen3_moe", hidden, layers, 4 * expert_hidden, vocabulary, heads, groups, head)
    more = {"num_experts": experts, "moe_intermediate_size": expert_hidden}
    grouped = "--switch", "use_contiguous_weight_layout_attention=false"
    return export.model(("--preset", "qwen3_moe", *grouped), config | more)


def megatron_transformer(hidden: int, layers: int, feed_forward: int, vocabulary: int) -> Model:
    """A Qwen3's weights under Megatron's names on 8 ranks (2 data x 4 model parallel), with gates, then ups, in one.

    Heads have 128 elements; two of q share one of k and v.
    """
    head = 128
    groups = hidden // head // 2
    export = _Exporting(2, MEGATRON_TENSOR)
    export.add("embedding.word_embeddings.weight", (vocabulary, hidden), 0, {"model.embed_tokens.weight": _same})
    for layer in range(layers):
        mine, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        heads = {
            f"{theirs}.self_attn.{name}_proj.weight": partial(_of_groups, groups, head * start, head * stop)
            for name, start, stop in (("q", 0, 2), ("k", 2, 3), ("v", 3, 4))
        }
        export.add(f"{mine}.self_attention.linear_qkv.weight", (groups * 4 * head, hidden), 0, heads)
        attention_output = {f"{theirs}.self_attn.o_proj.weight": _same}
        export.add(f"{mine}.self_attention.linear_proj.weight", (hidden, 2 * groups * head), 1, attention_output)
        both = {
            f"{theirs}.mlp.{name}_proj.weight": partial(_rows, feed_forward * number, feed_forward * (number + 1))
            for number, name in enumerate(("gate", "up"))
        }
        export.add(f"{mine}.mlp.linear_fc1.weight", (2 * feed_forward, hidden), 0, both)
        down = {f"{theirs}.mlp.down_proj.weight": _same}
        export.add(f"{mine}.mlp.linear_fc2.weight", (hidden, feed_forward), 1, down)
        for name, other, length in (
            ("self_attention.q_layernorm", "self_attn.q_norm", head),
            ("self_attention.k_layernorm", "self_attn.k_norm", head),
            ("input_layernorm", "input_layernorm", hidden),
            ("pre_mlp_layernorm", "post_attention_layernorm", hidden),
        ):
            export.add(f"{mine}.{name}.weight", (length,), None, {f"{theirs}.{other}.weight": _same})
    export.add("decoder.final_layernorm.weight", (hidden,), None, {"model.norm.weight": _same})
    export.add("output_layer.weight", (vocabulary, hidden), 0, {"lm_head.weight": _same})
    config = _config("qwen3", hidden, layers, feed_forward, vocabulary, 2 * groups, groups, head)
    gates_first = "--switch", "use_interleaved_weight_layout_mlp=false"
    by_groups = "--switch", "use_contiguous_weight_layout_attention=false"
    return export.model(("--preset", "qwen3", *gates_first, *by_groups), config)


class _Exporting:
    """Collects parameters, and those that they become."""

    def __init__(self, data: int, tensor: int) -> None:
        self._devices = data, tensor
        self._parameters: list[Parameter] = []
        self._exported: list[Exported] = []

    def add(
        self,
        name: str,
        shape: Shape,
        axis: int | None,
        parts: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    ) -> None:
        """Add a parameter cut along an axis, and the names and values of its parts."""
        parameter = Parameter(name, shape, _megatron(*self._devices, shape, axis), cut_by(None, 1, len(shape)))
        self._parameters.append(parameter)
        self._exported += [Exported(each, parameter, part) for each, part in parts.items()]

    def model(self, options: tuple[str, ...], config: Mapping[str, object]) -> Model:
        """Return the model."""
        return Model(tuple(self._parameters), Export(options, config, tuple(self._exported)))


def _same(whole: np.ndarray) -> np.ndarray:
    return whole


def _rows(start: int, stop: int, whole: np.ndarray) -> np.ndarray:
    return whole[start:stop]


def _of_groups(groups: int, start: int, stop: int, whole: np.ndarray) -> np.ndarray:
    """Rows `start` to `stop` of every group of rows."""
    return whole.reshape(groups, -1, whole.shape[1])[:, start:stop].reshape(-1, whole.shape[1])


def _of_expert(expert: int, start: int, stop: int, whole: np.ndarray) -> np.ndarray:
    """Some columns of a stacked matrix, as rows."""
    return whole[expert, :, start:stop].T


def _config(
    family: str, hidden: int, layers: int, feed_forward: int, vocabulary: int, heads: int, groups: int, head: int
) -> dict[str, object]:
    return {
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _transformer_weights(
    hidden: int, layers: int, feed_forward: int, vocabulary: int
) -> Sequence[tuple[str, Shape, int | None]]:
    """Name, shape and the axis that model parallelism cuts of every weight."""
    weights: list[tuple[str, Shape, int | None]] = [("model.tok_embeddings.weight", (vocabulary, hidden), 0)]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        weights += [(f"{at}.attention.{name}.weight", (hidden, hidden), 0) for name in ("wq", "wk", "wv")]
        weights += [
            (f"{at}.attention.wo.weight", (hidden, hidden), 1),
            (f"{at}.feed_forward.w1.weight", (feed_forward, hidden), 0),
            (f"{at}.feed_forward.w2.weight", (hidden, feed_forward), 1),
            (f"{at}.feed_forward.w3.weight", (feed_forward, hidden), 0),
            (f"{at}.attention_norm.weight", (hidden,), None),
            (f"{at}.ffn_norm.weight", (hidden,), None),
        ]
    return [*weights, ("model.norm_out.weight", (hidden,), None), ("model.output.weight", (vocabulary, hidden), 0)]


def _megatron(data: int, tensor: int, shape: Shape, cut_axis: int | None, optimizer_shards: int = 0) -> ParameterLayout:
    tensor_map = tuple((0,) if axis == cut_axis else () for axis in range(len(shape)))
    shards = optimizer_shards if len(shape) == 2 else 0
    return ParameterLayout(
        (data, tensor), tensor_map, optimizer_shard_step=tensor if shards else 0, optimizer_shard_size=shards
    )
