"""Slow, literal numpy versions of the rules, and random strategies to try them on. Shares no code with core."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from hypothesis import strategies as st

AXIS_LENGTH = 24
"""Every axis of a random tensor has this length, which all cuts over these device counts divide."""
DEVICE_COUNTS = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True)
class RandomLayout:
    """A layout in the terms of a strategy file: device axes counted from the right, one list per tensor axis."""

    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    optimizer_parts: tuple[int, ...]
    """How much of each repeated axis, from the right, the optimizer shard uses."""

    @property
    def repeated(self) -> list[int]:
        """Repeated device axes longer than 1, as positions from the left."""
        named = {len(self.device_matrix) - 1 - axis for axes in self.tensor_map for axis in axes}
        return [axis for axis, size in enumerate(self.device_matrix) if axis not in named and size > 1]

    @property
    def optimizer_size(self) -> int:
        return math.prod(self.optimizer_parts) if self.optimizer_parts else 0


def shard_of(whole: np.ndarray, layout: RandomLayout, rank: int) -> np.ndarray:
    """What a rank holds, by splitting the whole tensor again and again."""
    coordinates = list(product(*(range(size) for size in layout.device_matrix)))[rank]
    shard = whole
    for tensor_axis, device_axes in enumerate(layout.tensor_map):
        for axis in device_axes:
            position = len(layout.device_matrix) - 1 - axis
            shard = np.split(shard, layout.device_matrix[position], tensor_axis)[coordinates[position]]
    used = list(zip(reversed(layout.repeated), layout.optimizer_parts, strict=False))
    for position, part in reversed(used):
        shard = np.split(shard, part, 0)[coordinates[position] % part]
    return shard


def device_matrices(count: int) -> list[tuple[int, ...]]:
    """All ordered factorizations of a device count, with up to one axis of size 1."""

    def factorizations(n: int) -> list[tuple[int, ...]]:
        if n == 1:
            return [()]
        return [(f, *rest) for f in range(2, n + 1) if n % f == 0 for rest in factorizations(n // f)]

    plain = factorizations(count)
    return [matrix for base in plain for matrix in ((base or (1,)), (1, *base), (*base, 1))]


@st.composite
def layouts(draw: st.DrawFn, devices: int, axis_count: int) -> RandomLayout:
    """A random layout for a tensor of `axis_count` axes over `devices` devices."""
    matrix = draw(st.sampled_from(device_matrices(devices)))
    axes = draw(st.permutations(range(len(matrix))))
    tensor_map: list[list[int]] = [[] for _ in range(axis_count)]
    for axis in axes:
        place = draw(st.integers(0, axis_count))
        if place < axis_count:
            tensor_map[place].append(axis)
    layout = RandomLayout(matrix, tuple(map(tuple, tensor_map)), ())
    return RandomLayout(matrix, layout.tensor_map, draw(_optimizer_parts(layout)))


@st.composite
def _optimizer_parts(draw: st.DrawFn, layout: RandomLayout) -> tuple[int, ...]:
    sizes = [layout.device_matrix[axis] for axis in reversed(layout.repeated)]
    if not sizes or not layout.tensor_map or not draw(st.booleans()):
        return ()
    whole_count = draw(st.integers(0, len(sizes)))
    parts = sizes[:whole_count]
    if whole_count < len(sizes):
        size = sizes[whole_count]
        parts.append(draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0])))
    return tuple(parts)


def wholes(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Tensors whose elements are all different, also between tensors."""
    result = []
    first = 0
    for shape in shapes:
        size = math.prod(shape)
        result.append(np.arange(first, first + size, dtype=np.int32).reshape(shape))
        first += size
    return result
