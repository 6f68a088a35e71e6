"""Layouts, strategies, catalogs and plans for tests, literal or random."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import DType, dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Extent
from tests.support.reference import DEVICE_COUNTS, RandomLayout, layouts, shard_of


def as_layout(random: RandomLayout) -> ParameterLayout:
    return ParameterLayout(
        random.device_matrix,
        random.tensor_map,
        nested=True,
        optimizer_shard_step=1 if random.optimizer_parts else 0,
        optimizer_shard_size=random.optimizer_size,
    )


FLOAT = dtype_from_name("Float32")

HALF = dtype_from_name("Float16")

INT = dtype_from_name("Int32")


def entry(name: str, shape: tuple[int, ...], dtype: DType = INT, text: str | None = None) -> TensorEntry:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return TensorEntry(name, dtype, shape, () if text is not None else (Extent(0, size),), text)


def make_catalog(
    ranks: dict[int, list[TensorEntry]], digests: dict[int, dict[str, str]] | None = None
) -> CheckpointCatalog:
    records = {
        rank: CatalogRecord(
            rank,
            f"/src/rank_{rank}/m.ckpt",
            1,
            "v",
            FileIndex(CheckpointFormat.CKPT, 1, {entry.name: entry for entry in entries}),
            (digests or {}).get(rank, {}),
        )
        for rank, entries in ranks.items()
    }
    return CheckpointCatalog("/src", CheckpointFormat.CKPT, None, records)


def make_strategy(*stages: dict[str, ParameterLayout]) -> Strategy:
    return Strategy(tuple(StageStrategy(number, layouts) for number, layouts in enumerate(stages)), "test")


def inputs_of(
    catalog: CheckpointCatalog, source: Strategy | None, target: Strategy | None, **options: Any
) -> PlanInputs:
    options = {"layout": RankFolders(), **options}
    return PlanInputs(catalog, source, target, CheckpointFormat.CKPT, **options)


def plan_of(
    catalog: CheckpointCatalog, source: Strategy | None, target: Strategy | None, **options: object
) -> ConversionPlan:
    return build_plan(inputs_of(catalog, source, target, **options))


def vector(devices: int, cut: bool = False) -> ParameterLayout:
    return ParameterLayout((devices,), ((0,) if cut else (),), nested=True)


@dataclasses.dataclass(frozen=True)
class Side:
    """A random side: per stage, parameter number -> layout."""

    devices: int
    stages: tuple[dict[int, RandomLayout], ...]

    def strategy(self) -> Strategy:
        return make_strategy(*({f"p{n}": as_layout(lay) for n, lay in stage.items()} for stage in self.stages))

    def shards(self, tensors: Sequence[np.ndarray]) -> dict[int, dict[int, np.ndarray]]:
        """What each rank holds, by parameter number, by literal splitting."""
        return {
            stage * self.devices + rank: {n: shard_of(tensors[n], lay, rank) for n, lay in layouts_of.items()}
            for stage, layouts_of in enumerate(self.stages)
            for rank in range(self.devices)
        }


def catalog_of(shards: Mapping[int, Mapping[int, np.ndarray]]) -> CheckpointCatalog:
    """The catalog of ranks that hold these shards."""
    return make_catalog(
        {rank: [entry(f"p{n}", shard.shape) for n, shard in held.items()] for rank, held in shards.items()}
    )


@st.composite
def sides(draw: st.DrawFn, axis_counts: list[int]) -> Side:
    devices = draw(st.sampled_from(DEVICE_COUNTS))
    stage_count = draw(st.integers(1, 3))
    stages: list[dict[int, RandomLayout]] = [{} for _ in range(stage_count)]
    for number, axis_count in enumerate(axis_counts):
        holders = draw(st.sets(st.integers(0, stage_count - 1), min_size=1))
        for stage in holders:
            stages[stage][number] = draw(layouts(devices, axis_count))
    for held in stages:  # a stage without parameters would have no devices
        if not held:
            held[0] = draw(layouts(devices, axis_counts[0]))
    return Side(devices, tuple(stages))


def with_shape(layout: ParameterLayout, *shape: int) -> ParameterLayout:
    return replace(layout, tensor_shape=shape)


ROWS_OF_TWO = ParameterLayout((2,), ((0,), ()))


def uneven(*lengths: int) -> ParameterLayout:
    return ParameterLayout((len(lengths),), ((0,), ()), param_split_shape=lengths, indices_offset=(0,) * len(lengths))


def vector2(devices: int) -> ParameterLayout:
    return ParameterLayout((devices,), ((), (0,)), nested=True)
