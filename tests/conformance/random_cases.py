"""Random models and strategies: every case is made from its seed alone."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import pairwise

import numpy as np

from tests.conformance.cases import DTYPES, Case, Entry, ShardGrid, Side, Written
from tests.support.checkpoints import Contents
from tests.support.reference import RandomLayout, device_matrices

_DEVICES_PER_STAGE = (1, 2, 3, 4, 6, 8)
_LONG_NAME = "adam_v.layers.{}." + "submodule." * 15 + "weight"
"""Its length takes two bytes in a protobuf file."""
_NAMES = (
    *("embedding.table", "layers.{}.attention.weight", "layers.{}.bias", "adam_m.layers.{}.weight", "head.weight"),
    _LONG_NAME,
)
_DASHED_NAMES = ("word-embedding.table", "layers-{}.weight", "lm-head.{}", "a-b-{}")
_NUMBERED_NAMES = ("0-gram.{}", "2-gram.{}", "10-{}", "1--{}")
"""What looks like a stage's number is part of the name: a merged strategy alone can say so."""
_OUTSIDERS = ("global_step", "learning_rate", "loss_scale", "accumulated", "layers.0.unknown")


class _Role(Enum):
    """Whose strategy has a parameter."""

    BOTH = auto()
    SOURCE = auto()
    TARGET = auto()
    NEITHER = auto()


def build_case(seed: int) -> Case:
    """The case of a seed."""
    return _Builder(seed).build()


class _Builder:
    """Draws a case; what is drawn first (sizes, features) limits what is drawn later (layouts, shapes)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.pool = self.rng.choices((_NAMES, _DASHED_NAMES, _NUMBERED_NAMES), (94, 4, 2))[0]
        self.nested_vectors = self._chance(0.1)
        self.uneven = self._chance(0.05)

    def build(self) -> Case:
        has_source, has_target = self.rng.choices([(True, True), (True, False), (False, True)], (85, 6, 9))[0]
        stage_counts = self.rng.choices((1, 2, 3), (4, 3, 2), k=2)
        roles = self._roles(max(stage_counts), both=has_source and has_target)
        axis_counts = {name: self.rng.choices(range(5), (1, 3, 6, 4, 3))[0] for name in roles}

        def side(stage_count: int, own: _Role) -> Side:
            return self._side(
                stage_count, {name: axis_counts[name] for name in roles if roles[name] in (own, _Role.BOTH)}
            )

        source = side(stage_counts[0], _Role.SOURCE) if has_source else None
        target = side(stage_counts[1], _Role.TARGET) if has_target else None
        model = {name: self._tensor(name, axis_counts[name], [source, target]) for name in roles}
        if self.uneven:
            source, target = source and self._made_uneven(source, model), target and self._made_uneven(target, model)
        formats = self.rng.choices(("ckpt", "safetensors"), (2, 1), k=2)
        text = {"note": "größer as 東京 🙂", "empty": ""} if formats == ["ckpt", "ckpt"] and self._chance(0.12) else {}
        return Case(self.seed, model, source, target, formats[0], formats[1], text)

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _roles(self, shared: int, both: bool) -> dict[str, _Role]:
        """Names and roles; at least one shared parameter for each pipeline stage."""
        names = list(dict.fromkeys(name.format(i) for name in self.pool for i in range(3)))
        roles = dict.fromkeys(self.rng.sample(names, self.rng.randint(shared, 8)), _Role.BOTH)
        if both:
            for role, probability in ((_Role.SOURCE, 0.25), (_Role.TARGET, 0.1)):
                if self._chance(probability):
                    roles[f"adam_v.{role.name.lower()}"] = role
        return roles | {name: _Role.NEITHER for name in _OUTSIDERS if self._chance(0.3)}

    def _side(self, stage_count: int, axis_counts: dict[str, int]) -> Side:
        devices = self.rng.choice(_DEVICES_PER_STAGE)
        written = self.rng.choices(list(Written), (2, 1, 4, 2, 3, 1))[0]
        if self.pool is _NUMBERED_NAMES or (stage_count > 1 and not written.is_directory):
            written = Written.MERGED_JSON if written.suffix == ".json" else Written.MERGED
        json = written.suffix == ".json"
        stages: list[dict[str, ShardGrid]] = [{} for _ in range(stage_count)]
        for number, name in enumerate(self._shuffled(list(axis_counts))):
            homes = [number if number < stage_count else self.rng.randrange(stage_count)]
            if stage_count > 1 and self._chance(0.2):
                homes = self.rng.sample(range(stage_count), self.rng.randint(2, stage_count))
                homes = sorted({*homes, number % stage_count})
            alike = self._cut(devices, axis_counts[name], json) if self._chance(0.4) else None
            for home in homes:
                stages[home][name] = alike or self._cut(devices, axis_counts[name], json)
        return Side(devices, tuple(stages), written)

    def _cut(self, devices: int, axis_count: int, json: bool) -> ShardGrid:
        matrix = self.rng.choice(device_matrices(devices))
        nested = not json and (self._chance(0.4) if axis_count > 1 else axis_count == 1 and self.nested_vectors)
        tensor_map: list[list[int]] = [[] for _ in range(axis_count)]
        for axis in self._shuffled(list(range(len(matrix)))):
            free = [axes for axes in tensor_map if nested or not axes]
            if free and self._chance(0.65):
                self.rng.choice(free).append(axis)
        if nested and len(tensor_map) == 1 and len(tensor_map[0]) > 1:
            nested = self._chance(0.5)  # flat, in its one list: the tensor's number of axes tells
        layout = RandomLayout(matrix, tuple(map(tuple, tensor_map)), ())
        if axis_count == 0 or not layout.repeated or self._chance(0.4):
            return ShardGrid(layout, nested, idle_step=self._chance(0.1))
        sizes = [matrix[axis] for axis in reversed(layout.repeated)]
        parts = self._optimizer_parts(sizes)
        return ShardGrid(
            replace(layout, optimizer_parts=parts), nested, says_all=parts == tuple(sizes) and self._chance(0.5)
        )

    def _optimizer_parts(self, sizes: list[int]) -> tuple[int, ...]:
        """All of the repeated axes, or some from the right and a part of the next."""
        if self._chance(0.4):
            return tuple(sizes)
        whole = self.rng.randrange(len(sizes))
        divisors = [part for part in range(1, sizes[whole]) if sizes[whole] % part == 0]
        return (*sizes[:whole], self.rng.choice(divisors))

    def _made_uneven(self, side: Side, model: Contents) -> Side:
        """The same, some of axis 0's pieces being of different lengths."""

        def changed(cut: ShardGrid, shape: tuple[int, ...]) -> ShardGrid:
            count = cut.pieces(0) if shape and not cut.layout.optimizer_parts else 1
            if count == 1 or shape[0] == count or self._chance(0.5):
                return cut
            ends = [0, *sorted(self.rng.sample(range(1, shape[0]), count - 1)), shape[0]]
            lengths = tuple(stop - start for start, stop in pairwise(ends))
            return replace(cut, uneven=lengths) if len(set(lengths)) > 1 else cut

        stages = tuple({name: changed(cut, model[name][1]) for name, cut in cuts.items()} for cuts in side.stages)
        return replace(side, stages=stages)

    def _tensor(self, name: str, axis_count: int, sides: Sequence[Side | None]) -> Entry:
        cuts = [stage[name] for side in sides if side for stage in side.stages if name in stage]
        shape = tuple(
            math.lcm(*(cut.pieces(axis) for cut in cuts)) * self.rng.choice((1, 1, 2, 3, 7))
            for axis in range(axis_count)
        )
        dtype = self.rng.choice(list(DTYPES))
        return dtype, shape, self._content(dtype, math.prod(shape))

    def _content(self, dtype: str, count: int) -> bytes:
        values = np.frombuffer(self.rng.randbytes(count * np.dtype(DTYPES[dtype]).itemsize), DTYPES[dtype]).copy()
        if dtype == "Bool":
            values &= 1
        elif dtype == "BFloat16":
            # MindSpore's transform goes through float32 and turns every NaN into 0x7fc0
            values[(values & 0x7F80) == 0x7F80] &= 0xFF80
        return values.tobytes()

    def _shuffled(self, items: list) -> list:
        return self.rng.sample(items, len(items))
