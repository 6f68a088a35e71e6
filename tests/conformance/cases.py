"""A conversion to be checked: the whole model, how source and target cut it, and so what their ranks hold."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from tests.support.checkpoints import Contents
from tests.support.reference import RandomLayout, shard_of
from tests.support.strategy_writer import FileLayout

Entry = tuple[str, tuple[int, ...], bytes]
"""Dtype, shape, raw bytes."""
DTYPES = {
    "Float32": np.uint32,
    "Float16": np.uint16,
    "BFloat16": np.uint16,
    "Float64": np.uint64,
    "Int8": np.uint8,
    "Int16": np.uint16,
    "Int32": np.uint32,
    "Int64": np.uint64,
    "UInt8": np.uint8,
    "UInt16": np.uint16,
    "UInt32": np.uint32,
    "UInt64": np.uint64,
    "Bool": np.uint8,
}
"""Name -> unsigned integers of the same size, by which contents are handled."""


class Written(StrEnum):
    """How a strategy is kept."""

    OWN = "the stage's own file"
    OWN_JSON = "the stage's own file, JSON"
    MERGED = "merged"
    MERGED_JSON = "merged, JSON"
    DIRECTORY = "directory of the ranks' files"
    DIRECTORY_JSON = "directory of the ranks' files, JSON"

    @property
    def suffix(self) -> str:
        return ".json" if self.name.endswith("JSON") else ".ckpt"

    @property
    def is_merged(self) -> bool:
        return self.name.startswith("MERGED")

    @property
    def is_directory(self) -> bool:
        return self.name.startswith("DIRECTORY")


@dataclass(frozen=True)
class ShardGrid:
    """How one parameter is cut, and how the strategy says so."""

    layout: RandomLayout
    nested: bool = False
    says_all: bool = False
    """The optimizer shard's size is written as -1: all repeated axes."""
    idle_step: bool = False
    """A step although there is no optimizer shard."""
    uneven: tuple[int, ...] = ()
    """The lengths of the shards along axis 0, if they are not all equal."""

    @property
    def step(self) -> int:
        """The number of devices right of the repeated axes."""
        last = max(self.layout.repeated, default=0)
        return math.prod(self.layout.device_matrix[last + 1 :])

    def pieces(self, tensor_axis: int) -> int:
        """Into how many pieces a tensor axis is cut."""
        matrix = self.layout.device_matrix
        count = math.prod(matrix[-1 - axis] for axis in self.layout.tensor_map[tensor_axis])
        return count * (self.layout.optimizer_size or 1) if tensor_axis == 0 else count

    def for_file(self, shape: tuple[int, ...]) -> FileLayout:
        """The fields of the strategy file."""
        sharded = self.layout.optimizer_size > 0
        return FileLayout(
            device_matrix=self.layout.device_matrix,
            tensor_map=self.layout.tensor_map,
            nested=self.nested,
            optimizer_step=self.step if sharded or self.idle_step else 0,
            optimizer_size=-1 if self.says_all else self.layout.optimizer_size,
            tensor_shape=shape,
            uneven=self.uneven,
        )

    @property
    def misread_by_mindspore(self) -> str:
        """What MindSpore's transform does to it that its training does not; nothing if it is right."""
        matrix = self.layout.device_matrix
        used = [axis for axes in self.layout.tensor_map for axis in axes if matrix[-1 - axis] > 1]
        ascends = used != sorted(used, reverse=True)
        if self.uneven:
            return "ignores param_split_shape"
        if self.layout.optimizer_size and self.layout.repeated == [0] and ascends and not self.nested:
            return "misplaces optimizer shards that only device axis 0 repeats"
        return ""


@dataclass(frozen=True)
class Side:
    """A strategy: of each pipeline stage the parameters and how they are cut."""

    devices: int
    stages: tuple[dict[str, ShardGrid], ...]
    written: Written

    @property
    def names(self) -> set[str]:
        return {name for stage in self.stages for name in stage}

    def stage_ranks(self, stage: int) -> range:
        """Global ranks of a pipeline stage."""
        return range(stage * self.devices, (stage + 1) * self.devices)

    @property
    def misread_by_mindspore(self) -> set[str]:
        """Parameters of which its transform gets the layout wrong."""
        cuts = {name: [stage[name] for stage in self.stages if name in stage] for name in self.names}
        return {
            name
            for name, found in cuts.items()
            # it takes one stage's layout for the others'
            if len({cut.layout for cut in found}) > 1 or any(cut.misread_by_mindspore for cut in found)
        }


@dataclass(frozen=True)
class Case:
    """A conversion: the whole model, both strategies (None: one rank, nothing cut), the kinds of files."""

    seed: int
    model: Contents
    source: Side | None
    target: Side | None
    source_format: str
    target_format: str
    text: dict[str, str] = field(default_factory=dict)

    @property
    def late(self) -> set[str]:
        """Parameters that only the target's strategy cuts."""
        return set() if not self.source or not self.target else self.target.names - self.source.names

    @property
    def uncut_in_source(self) -> set[str]:
        """What every source rank holds whole."""
        return set(self.model) - (self.source.names if self.source else set())

    @property
    def uncut_in_target(self) -> set[str]:
        """What every target rank is to hold whole."""
        known = self.source.names if self.source and self.target else set()
        return set(self.model) - (self.target.names if self.target else set()) - known

    def describe(self) -> str:
        """One line."""
        sides = [f"{len(side.stages)} x {side.devices}" if side else "whole" for side in (self.source, self.target)]
        return f"{sides[0]} -> {sides[1]}, {self.source_format} -> {self.target_format}"


def rank_contents(case: Case, side: Side | None, uncut: set[str]) -> dict[int, Contents]:
    """What the ranks of a side hold, by the slow reference."""
    rest = {name: value for name, value in case.model.items() if name in uncut}
    if side is None:
        return {0: dict(rest)}
    return {
        rank: rest | {name: _shard(case.model[name], cut, number) for name, cut in cuts.items()}
        for stage, cuts in enumerate(side.stages)
        for number, rank in enumerate(side.stage_ranks(stage))
    }


def _shard(whole: Entry, cut: ShardGrid, rank: int) -> Entry:
    dtype, shape, content = whole
    tensor, layout = np.frombuffer(content, DTYPES[dtype]).reshape(shape), cut.layout
    if cut.uneven:
        [piece] = shard_of(np.arange(len(cut.uneven)), replace(layout, tensor_map=layout.tensor_map[:1]), rank)
        tensor = np.split(tensor, np.cumsum(cut.uneven)[:-1])[piece]
        layout = replace(layout, tensor_map=((), *layout.tensor_map[1:]))
    shard = shard_of(tensor, layout, rank)
    return dtype, shard.shape, shard.tobytes()
