"""How tensor and expert parallelism cut the tensors of a Megatron model, by their names.

A *cut* is a rule: along which axis, and what is special. A rank's tensor, its *part*, consists of one or two *pieces*,
boxes of the whole tensor: the first matrix of a gated MLP has a gate and an up half, of which each rank has a slice.
Experts whose matrices are one tensor (`weight1`, `weight2`) have an axis of experts here, before the others; in files
its bytes are the same under a shape with two axes.

    linear_fc1.weight, gated, 2 ranks      whole: gate 0, gate 1, up 0, up 1      rank 1: gate 1, up 1
"""

import re

from reshard.core.errors import LayoutError
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape, TensorSlice

LAYER_PREFIX = re.compile(r"(?:decoder\.layers\.\d{1,6}|mtp\.layers\.\d+(?:\.transformer_layer)?)\.", re.ASCII)
"""What precedes the names of a layer's tensors."""


class Traits(Record):
    """What the names of a layer's tensors do not say.

    Attributes:
        gated: the first matrix of its MLP is a gate and an up matrix.
        latent: its attention is multi-latent (MLA).
        cuts_down: the down-projections of multi-latent attention are cut, as Megatron's own layers do; those of
            Transformer Engine are not.
        joint_norms: queries are normalized over all heads together, and so are keys; each head has a part of the norm.
    """

    gated: bool = False
    latent: bool = False
    cuts_down: bool = False
    joint_norms: bool = False


class Cut(Record):
    """How a tensor is cut.

    Attributes:
        axis: which axis the tensor-parallel ranks divide; None if each has the whole tensor.
        halves: along that axis, a gate is followed by an up half, each divided.
        of_experts: the tensor-parallel ranks are those of experts.
        stacked: it has all experts along axis 0, divided among the expert-parallel ranks.
    """

    axis: int | None = None
    halves: bool = False
    of_experts: bool = False
    stacked: bool = False


class ModelRank(Record):
    """A rank's place in tensor and expert parallelism."""

    tensor_rank: int = 0
    tensor_size: int = 1
    expert_rank: int = 0
    expert_size: int = 1
    expert_tensor_rank: int = 0
    expert_tensor_size: int = 1


class Piece(Record):
    """Elements of a part: their box in the whole tensor, and the same in the part."""

    box: TensorSlice
    local: TensorSlice


class Part(Record):
    """What a rank has of a tensor.

    Attributes:
        whole: shape of the whole tensor.
        shape: shape of the part.
        pieces: its elements, in order.
    """

    whole: Shape
    shape: Shape
    pieces: tuple[Piece, ...]


_EXPERT = r"mlp\.experts\.(?:local_experts\.\d+\.)?"
_FFN = r"mlp\.(?:shared_experts\.)?"
_NORM = r"[a-z_]*norm\.(?:weight|bias)"
_RULES: tuple[tuple[re.Pattern[str], Cut], ...] = tuple(
    (re.compile(pattern, re.ASCII), cut)
    for pattern, cut in (
        (r"embedding\.word_embeddings\.weight|output_layer\.weight|eh_proj\.weight", Cut(0)),
        (r"embedding\.position_embeddings\.weight", Cut()),
        (rf"(?:decoder\.|self_attention\.|mtp\.)?{_NORM}|mtp\.final_layernorms\.\d+\.weight", Cut()),
        (r"(?:self_attention\.[a-z_]+|mlp\.linear_fc1)\.layer_norm_(?:weight|bias)", Cut()),
        (r"(?:self_attention\.linear_proj|mlp\.linear_fc2)\.post_layernorm\.weight", Cut()),
        (r"self_attention\.linear_(?:q_up_proj|kv_up_proj|q_proj)\.weight", Cut(0)),
        (r"self_attention\.core_attention\.softmax_offset", Cut(0)),
        (r"self_attention\.linear_proj\.weight", Cut(1)),
        (r"self_attention\.linear_proj\.bias", Cut()),
        (rf"{_FFN}linear_fc2\.weight", Cut(1)),
        (rf"{_FFN}linear_fc2\.bias", Cut()),
        (rf"{_EXPERT}linear_fc2\.weight\d*", Cut(1, of_experts=True)),
        (rf"{_EXPERT}linear_fc2\.bias\d*", Cut(of_experts=True)),
        (r"mlp\.experts\.weight2", Cut(1, of_experts=True, stacked=True)),
        (r"mlp\.router\.(?:weight|bias|expert_bias)|mlp\.shared_experts\.gate_weight", Cut()),
    )
)
_FC1 = re.compile(rf"{_FFN}linear_fc1\.(?:weight|bias)", re.ASCII)
_EXPERT_FC1 = re.compile(rf"{_EXPERT}linear_fc1\.(?:weight|bias)\d*", re.ASCII)
_QKV = re.compile(r"self_attention\.linear_qkv\.(?:weight|bias)", re.ASCII)
_HEAD_NORM = re.compile(r"self_attention\.[qk]_layernorm\.weight", re.ASCII)
_DOWN = re.compile(r"self_attention\.linear_(?:q|kv)_down_proj\.weight", re.ASCII)


def cut_of(name: str, traits: Traits) -> Cut | None:
    """Return how a tensor is cut, by its name in a file or in the whole model; None for an unknown name."""
    tail = LAYER_PREFIX.sub("", name, count=1) if LAYER_PREFIX.match(name) else name
    if _FC1.fullmatch(tail):
        return Cut(0, halves=traits.gated)
    if _EXPERT_FC1.fullmatch(tail):
        return Cut(0, halves=traits.gated, of_experts=True)
    if tail == "mlp.experts.weight1":
        return Cut(2, halves=traits.gated, of_experts=True, stacked=True)
    if _QKV.fullmatch(tail):
        return Cut() if traits.latent else Cut(0)
    if traits.joint_norms and _HEAD_NORM.fullmatch(tail):
        return Cut(0)
    if _DOWN.fullmatch(tail):
        return Cut(0) if traits.cuts_down else Cut()
    return next((cut for pattern, cut in _RULES if pattern.fullmatch(tail)), None)


def stacked_shape(name: str, stored: Shape, experts: int) -> Shape:
    """Return the shape with an axis of experts for the shape that a file gives `weight1` or `weight2`.

    Raises:
        LayoutError: it is no shape for so many experts.
    """
    rows_are_experts = name.endswith("weight2")
    if len(stored) != 2 or stored[0 if rows_are_experts else 1] % experts:
        raise LayoutError(f"its shape {list(stored)} is not that of {experts} experts")
    first, second = stored
    return (experts, first // experts, second) if rows_are_experts else (experts, first, second // experts)


def stored_shape(name: str, shape: Shape) -> Shape:
    """Return the shape that a file gives `weight1` or `weight2`, whose shape with an axis of experts is `shape`."""
    experts, first, second = shape
    return (experts * first, second) if name.endswith("weight2") else (first, experts * second)


def placed_part(cut: Cut, shape: Shape, rank: ModelRank) -> Part:
    """Return where the elements of a rank's part of this shape are in the whole tensor.

    Raises:
        LayoutError: no part has this shape.
    """
    whole = tuple(length * count for length, count in zip(shape, _parts(cut, shape, rank), strict=True))
    return part_of(cut, whole, rank)


def part_of(cut: Cut, whole: Shape, rank: ModelRank) -> Part:
    """Return the part that a rank has of a tensor of shape `whole`.

    Raises:
        LayoutError: the tensor cannot be cut evenly.
    """
    parts = _parts(cut, whole, rank)
    for number, count in enumerate(parts):
        divisor = count * (2 if cut.halves and number == cut.axis else 1)
        if whole[number] % divisor:
            raise LayoutError(f"axis {number} of its shape {list(whole)} cannot be divided evenly by {divisor}")
    shape = tuple(length // count for length, count in zip(whole, parts, strict=True))
    starts = [0] * len(whole)
    if cut.stacked:
        starts[0] = rank.expert_rank * shape[0]
    axis = cut.axis
    if axis is None:
        return Part(whole, shape, (_piece(starts, [0] * len(whole), shape),))
    index = rank.expert_tensor_rank if cut.of_experts else rank.tensor_rank
    count = 2 if cut.halves and parts[axis] > 1 else 1
    length = shape[axis] // count
    extent = (*shape[:axis], length, *shape[axis + 1 :])
    pieces = []
    for half in range(count):
        local = [0] * len(whole)
        local[axis] = half * length
        starts[axis] = half * (whole[axis] // count) + index * length
        pieces.append(_piece(starts, local, extent))
    return Part(whole, shape, tuple(pieces))


def _parts(cut: Cut, shape: Shape, rank: ModelRank) -> list[int]:
    """Into how many parts each axis is divided."""
    axes = 3 if cut.stacked else 0 if cut.axis is None else cut.axis + 1
    if len(shape) < axes:
        raise LayoutError(f"its shape {list(shape)} has too few axes for how it is cut")
    parts = [1] * len(shape)
    if cut.axis is not None:
        parts[cut.axis] = rank.expert_tensor_size if cut.of_experts else rank.tensor_size
    if cut.stacked:
        parts[0] = rank.expert_size
    return parts


def _piece(start: list[int], local: list[int], shape: Shape) -> Piece:
    return Piece(_box(start, shape), _box(local, shape))


def _box(start: list[int], shape: Shape) -> TensorSlice:
    return TensorSlice(tuple(start), tuple(low + length for low, length in zip(start, shape, strict=True)))
