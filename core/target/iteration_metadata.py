"""Builds metadata.json of MindFormers' Checkpoint 2.0 from a plan; the format is that of `checkpoint2_metadata`.

MindFormers' loader unpacks a layout by position, so it has exactly five keys, in this order. It describes the lowest
pipeline stage with the parameter; shards are listed for all stages. Without a layout a parameter is on every rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from reshard.core.plan.layout_classes import TargetStage
from reshard.core.plan.model import FileStage, ReshardedParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.checkpoint2_names import UNLISTED_PARAMETERS
from reshard.core.tensor.layout import ParameterLayout, ShardGrid
from reshard.core.tensor.slices import Shape


@dataclass
class _Shard:
    """A shard with one number: the ranks that own it, the files that hold it, by the rank that writes each."""

    owners: list[int] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)


def build_metadata(plan: ConversionPlan) -> bytes:
    """Return the bytes of metadata.json for the plan of a target of several ranks."""
    keepers = {stage.number: _keepers(stage) for stage in plan.stages}
    outside = frozenset(plan.match.outside)
    # as bytes at once: those of a large job would take gigabytes as objects
    tensors: dict[str, msgspec.Raw] = {}
    storage: dict[str, msgspec.Raw] = {}
    for parameter in plan.match.resharded:
        if parameter.name in UNLISTED_PARAMETERS:
            continue
        stages = [stage for stage in plan.match.file_stages if stage.number in parameter.target_layouts]
        grids = [_grid(parameter, stage) for stage in stages]
        tensors[parameter.name] = _raw(_tensor(parameter, stages, grids, has_layout=parameter.name not in outside))
        shards: dict[int, _Shard] = {}
        for stage, grid in zip(stages, grids, strict=True):
            kept = keepers[stage.number].get(parameter.name)
            for position, number in enumerate(shard_numbers(grid)):
                shard = shards.setdefault(number, _Shard())
                shard.owners.append(stage.ranks[position])
                if kept is None or kept[position]:
                    shard.files[stage.ranks[position]] = plan.file_name(stage.files[position])
        for number, shard in shards.items():
            storage[str((parameter.name, (number,)))] = _raw(list(_entries(shard)))
    return msgspec.json.encode({"state_dict_metadata": tensors, "storage_data": storage})


def five_keys(layout: ParameterLayout, axis_count: int, first_rank: int) -> dict[str, Any]:
    """Return the description of a layout for a tensor of `axis_count` axes on ranks from `first_rank` on.

    Raises:
        LayoutError: the layout does not fit such a tensor.
    """
    folded = layout.folded(axis_count)
    entries = [list(axes) if len(axes) > 1 else axes[0] if axes else -1 for axes in folded.tensor_map]
    return {
        "device_matrix": list(folded.device_matrix),
        "tensor_map": entries,
        "interleaved_parallel": False,
        "alias_name": [f"axis_{number}" for number in range(len(folded.device_matrix))],
        "rank_list": list(range(first_rank, first_rank + layout.device_count)),
    }


def shard_numbers(grid: ShardGrid) -> list[int]:
    """Return each stage rank's shard: its index row-major over the grid's pieces."""
    if not grid.pieces:
        return [0] * grid.device_count
    numbers: list[int] = np.ravel_multi_index(tuple(grid.cells.T), grid.pieces).tolist()
    return numbers


def _grid(parameter: ReshardedParameter, stage: FileStage) -> ShardGrid:
    return parameter.target_layouts[stage.number].shard_grid(len(parameter.shape))


def _tensor(
    parameter: ReshardedParameter, stages: list[FileStage], grids: list[ShardGrid], *, has_layout: bool
) -> dict[str, Any]:
    chunks: dict[tuple[int, Shape], None] = {}
    for grid in grids:
        local = _local_shape(parameter.shape, grid)
        chunks |= dict.fromkeys((number, local) for number in shard_numbers(grid))
    lowest = stages[0]
    layout = parameter.target_layouts[lowest.number]
    axis_count = len(parameter.shape)
    return {
        "properties": {
            "dtype": parameter.dtype.name,
            "replica_id": _replica_numbers(grids[0]) if has_layout else 0,
            "allow_shape_mismatch": False,
            "allow_to_save": True,
        },
        "global_shape": list(parameter.shape),
        "axis_fragmentations": list(grids[0].pieces),
        "layout": five_keys(layout, axis_count, lowest.ranks.start) if has_layout else None,
        "chunk": [{"global_offset": [number], "local_shape": list(shape)} for number, shape in chunks],
    }


def _local_shape(shape: Shape, grid: ShardGrid) -> Shape:
    return tuple(length // count for length, count in zip(shape, grid.pieces, strict=True))


def _replica_numbers(grid: ShardGrid) -> list[int]:
    """For each stage rank the number of lower ones that own the same shard."""
    seen: dict[int, int] = {}
    numbers = []
    for shard in shard_numbers(grid):
        numbers.append(seen.get(shard, 0))
        seen[shard] = numbers[-1] + 1
    return numbers


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _entries(shard: _Shard) -> Iterator[dict[str, Any]]:
    for rank, file in shard.files.items():
        yield {"file_name": file, "storage_rank": rank, "rank_group": shard.owners}


def _keepers(stage: TargetStage) -> Mapping[str, np.ndarray]:
    """Parameter -> bool array of shape (stage ranks,), if redundancy is removed: which ranks keep their shards."""
    return {
        parameter.name: kept
        for layout_class in stage.classes
        if layout_class.kept is not None
        for parameter, kept in zip(layout_class.parameters, layout_class.kept, strict=True)
    }
