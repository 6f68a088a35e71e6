"""Builds metadata.json of MindFormers' Checkpoint 2.0 from a plan; the format is that of `checkpoint2_metadata`.

MindFormers' loader unpacks a layout by position, so it has exactly five keys, in this order. It describes the lowest
pipeline stage with the parameter; shards are listed for all stages. Without a layout a parameter is on every rank.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from reshard.core.layouts.checkpoint2.names import UNLISTED_PARAMETERS
from reshard.core.plan.layout_classes import TargetStage
from reshard.core.plan.model import FileStage, ReshardedParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.layout import ParameterLayout, ShardGrid
from reshard.core.tensor.slices import Shape

_ENCODE = msgspec.json.Encoder().encode


class _Shard(Struct):
    """A shard with one number: the ranks that own it, the files that hold it, by the rank that writes each."""

    owners: list[int] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)


def build_metadata(plan: ConversionPlan) -> bytes:
    """Return the bytes of metadata.json for the plan of a target of several ranks."""
    # piece by piece: as objects, the documents of large jobs would take many times their bytes
    buffer = BytesIO()
    listed = [parameter for parameter in plan.match.resharded if parameter.name not in UNLISTED_PARAMETERS]
    buffer.write(b'{"state_dict_metadata":')
    _write_object(buffer, _tensors(plan, listed))
    buffer.write(b',"storage_data":')
    _write_object(buffer, _places(plan, listed))
    buffer.write(b"}")
    return buffer.getvalue()


def _write_object(buffer: BytesIO, members: Iterable[tuple[str, bytes]]) -> None:
    separator = b"{"
    for key, value in members:
        buffer.write(separator + _ENCODE(key) + b":" + value)
        separator = b","
    buffer.write(b"}" if separator == b"," else b"{}")


def _tensors(plan: ConversionPlan, parameters: Iterable[ReshardedParameter]) -> Iterator[tuple[str, bytes]]:
    outside = frozenset(plan.match.files.outside)
    for parameter in parameters:
        tensor = _tensor(parameter, _stages(plan, parameter), has_layout=parameter.name not in outside)
        yield parameter.name, _ENCODE(tensor)


def _places(plan: ConversionPlan, parameters: Iterable[ReshardedParameter]) -> Iterator[tuple[str, bytes]]:
    keepers = {stage.number: _keepers(stage) for stage in plan.stages}
    for parameter in parameters:
        shards: dict[int, _Shard] = {}
        for stage in _stages(plan, parameter):
            kept = keepers[stage.number].get(parameter.name)
            numbers = _shard_numbers(parameter.target_layouts[stage.number], len(parameter.shape))
            for position, number in enumerate(numbers):
                shard = shards.setdefault(number, _Shard())
                shard.owners.append(stage.ranks[position])
                if kept is None or kept[position]:
                    shard.files[stage.ranks[position]] = plan.file_name(stage.files[position])
        for number, shard in shards.items():
            yield str((parameter.name, (number,))), _ENCODE(list(_entries(shard)))


def _stages(plan: ConversionPlan, parameter: ReshardedParameter) -> list[FileStage]:
    return [stage for stage in plan.match.files.stages if stage.number in parameter.target_layouts]


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


@lru_cache(maxsize=1024)
def _shard_numbers(layout: ParameterLayout, axis_count: int) -> Sequence[int]:
    """Return each stage rank's shard: its index row-major over the pieces of a tensor's axes."""
    grid = layout.shard_grid(axis_count)
    if not grid.pieces:
        return [0] * grid.device_count
    numbers: list[int] = np.ravel_multi_index(tuple(grid.cells.T), grid.pieces).tolist()
    return numbers


@lru_cache(maxsize=1024)
def _five_keys(layout: ParameterLayout, axis_count: int, first_rank: int) -> msgspec.Raw:
    return msgspec.Raw(_ENCODE(five_keys(layout, axis_count, first_rank)))


def _tensor(parameter: ReshardedParameter, stages: Sequence[FileStage], *, has_layout: bool) -> dict[str, Any]:
    axis_count = len(parameter.shape)
    chunks: dict[tuple[int, Shape], None] = {}
    for stage in stages:
        layout = parameter.target_layouts[stage.number]
        local = _local_shape(parameter.shape, layout.shard_grid(axis_count))
        chunks |= dict.fromkeys((number, local) for number in _shard_numbers(layout, axis_count))
    lowest = stages[0]
    layout = parameter.target_layouts[lowest.number]
    return {
        "properties": {
            "dtype": parameter.dtype.name,
            "replica_id": _replica_numbers(_shard_numbers(layout, axis_count)) if has_layout else 0,
            "allow_shape_mismatch": False,
            "allow_to_save": True,
        },
        "global_shape": parameter.shape,
        "axis_fragmentations": layout.shard_grid(axis_count).pieces,
        "layout": _five_keys(layout, axis_count, lowest.ranks.start) if has_layout else None,
        "chunk": [{"global_offset": [number], "local_shape": shape} for number, shape in chunks],
    }


def _local_shape(shape: Shape, grid: ShardGrid) -> Shape:
    return tuple(length // count for length, count in zip(shape, grid.pieces, strict=True))


def _replica_numbers(shards: Sequence[int]) -> list[int]:
    """For each stage rank the number of lower ones that own the same shard."""
    seen: dict[int, int] = {}
    numbers = []
    for shard in shards:
        numbers.append(seen.get(shard, 0))
        seen[shard] = numbers[-1] + 1
    return numbers


def _entries(shard: _Shard) -> Iterator[dict[str, Any]]:
    owners = msgspec.Raw(_ENCODE(shard.owners))
    for rank, file in shard.files.items():
        yield {"file_name": file, "storage_rank": rank, "rank_group": owners}


def _keepers(stage: TargetStage) -> Mapping[str, np.ndarray]:
    """Parameter -> bool array of shape (stage ranks,), if redundancy is removed: which ranks keep their shards."""
    return {
        parameter.name: kept
        for layout_class in stage.classes
        if layout_class.kept is not None
        for parameter, kept in zip(layout_class.parameters, layout_class.kept, strict=True)
    }
