"""What is converted in the benchmarks: parameters, how both sides cut them, and the values that they hold.

Values are cheap and unmistakable: one pool of random floats, repeated without end, into which every parameter looks at
another place. The pool's length is a prime, so no row, column or shard of a tensor repeats another, and a byte in the
wrong place shows.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property

import numpy as np
from numpy.lib.stride_tricks import as_strided

from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape, TensorSlice

FLOAT = dtype_from_name("Float32")
_POOL_LENGTH = 2**24 - 3
_BLOCK_ELEMENTS = 2**20


class Side(StrEnum):
    """Which of the two checkpoints of a conversion."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True)
class Parameter:
    """A float32 parameter of one or two axes, and how the two sides cut it."""

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
class Model:
    """All parameters of a checkpoint."""

    parameters: tuple[Parameter, ...]

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
    width = parameter.shape[1] if len(parameter.shape) == 2 else 1
    first_column, columns = (box.start[1], box.shape[1]) if len(parameter.shape) == 2 else (0, 1)
    place = zlib.crc32(parameter.name.encode())
    rows_together = max(1, min(_POOL_LENGTH // width, _BLOCK_ELEMENTS // columns))
    for row in range(box.start[0], box.stop[0], rows_together):
        rows = min(rows_together, box.stop[0] - row)
        start = (place + row * width + first_column) % _POOL_LENGTH
        strides = (width * FLOAT.itemsize, FLOAT.itemsize)
        window = as_strided(_pool()[start:], (rows, columns), strides, writeable=False)
        yield np.ascontiguousarray(window).reshape(-1).view(np.uint8)


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
