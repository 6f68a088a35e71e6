"""One parameter of a plan, as documents: how shards of both sides overlap, and what one target rank reads."""

import math
from collections.abc import Sequence
from typing import Any

from reshard.core.errors import InputError
from reshard.core.plan.model import ParameterPlan, ReadItem
from reshard.core.plan.overlaps import ParameterOverlaps, TargetCell, overlaps_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.tensor.slices import Extent, bounding_extent, contiguous_axis
from reshard.core.text.options import option


def find_overlaps(plan: ConversionPlan, name: str) -> ParameterOverlaps:
    """The overlaps of a parameter's source and target shards; an InputError says why a parameter has none."""
    parameter = next((found for found in plan.match.resharded if found.name == name), None)
    if parameter is not None:
        return overlaps_of(plan, parameter)
    if any(each.name == name for each in plan.match.passed_through):
        raise InputError(
            f"no strategy knows {name!r}: every target rank gets a whole copy; {option('rank', 'R')} shows its source"
        )
    if any(appended.name == name for appended in plan.match.appended):
        raise InputError(f"{name!r} is appended to every target file; no source rank has it")
    if name in plan.match.dropped:
        raise InputError(f"{name!r} is dropped: the target's strategy does not have it")
    if name in plan.match.left_out.sources:
        raise InputError(f"{name!r} is left out by {plan.match.left_out.sources[name]}")
    raise InputError(
        f"the target has no parameter {name!r}{did_you_mean(name, [each.name for each in plan.match.resharded])}"
    )


def describe_reads(plan: ConversionPlan, rank: int, name: str) -> dict[str, Any]:
    """The reads that fill one parameter of one target rank, as JSON.

    Boxes are in the coordinates of the shards; `0:7:2` is every other index, as in Python. With `axes`, target axis i
    is source axis `axes[i]`. A read consists of `runs` contiguous runs of equal length; its `file_offsets` are its
    first byte in the source file, and the byte after its last.

    Raises:
        InputError: there is no such rank, or it has no such parameter.
    """
    rank_plan = plan.rank_plan(rank)
    parameter = next((found for found in rank_plan.parameters if found.name == name), None)
    if parameter is None:
        names = [each.name for each in rank_plan.parameters]
        raise InputError(f"target rank {rank} has no parameter {name!r}{did_you_mean(name, names)}")
    return {
        "rank": rank,
        "file": plan.file_name(rank),
        "copy_of": rank_plan.copy_of,
        "parameter": name,
        "dtype": parameter.dtype.name,
        "shape": list(parameter.box.shape),
        "box": str(parameter.box),
        "size_bytes": parameter.size_bytes,
        "reads": [_describe_read(plan, parameter, read) for read in parameter.reads],
    }


def _describe_read(plan: ConversionPlan, parameter: ParameterPlan, read: ReadItem) -> dict[str, Any]:
    entry = plan.source_entry(read.source_rank, parameter.sources[read.source].name)
    described = {
        "source_rank": read.source_rank,
        "source_file": plan.inputs.catalog.records[read.source_rank].location,
        "source_parameter": parameter.sources[read.source].name,
        "source_box": str(read.source_box),
        "target_box": str(read.target_box),
        "axes": None if read.axes is None else list(read.axes),
        "size_bytes": read.source_box.size * entry.dtype.itemsize,
    }
    if not entry.extents or not read.source_box.size:
        # a text is in the header, and an empty box has no bytes
        return described | {"runs": 0, "file_offsets": None}
    span = bounding_extent(read.source_box, entry.shape, entry.dtype.itemsize)
    axis = contiguous_axis(read.source_box, entry.shape)
    last = span.offset + span.length - 1
    return described | {
        "runs": math.prod(read.source_box.shape[:axis]),
        "file_offsets": [_file_offset(entry.extents, span.offset), _file_offset(entry.extents, last) + 1],
    }


def _file_offset(extents: Sequence[Extent], position: int) -> int:
    """The offset in the file of byte `position` of a shard."""
    for extent in extents:
        if position < extent.length:
            return extent.offset + position
        position -= extent.length
    raise ValueError(f"{position} bytes beyond the end of the shard")


def describe_overlaps(overlaps: ParameterOverlaps) -> dict[str, Any]:
    """Overlaps as JSON; boxes are in the coordinates of the whole tensors."""
    parameter = overlaps.parameter
    return {
        "parameter": parameter.name,
        "dtype": parameter.dtype.name,
        "shape": list(parameter.shape),
        "sources": [
            {
                "parameter": source.name,
                "dtype": source.dtype.name,
                "shape": list(source.shape),
                "cells": [
                    {"box": str(cell.box), "ranks": list(cell.ranks)}
                    for cell in overlaps.source_cells
                    if cell.source == number
                ],
            }
            for number, source in enumerate(parameter.sources)
        ],
        "stages": [
            {"stage": stage, "cells": [_describe_cell(overlaps, cell) for cell in cells]}
            for stage, cells in overlaps.target_cells.items()
        ],
    }


def _describe_cell(overlaps: ParameterOverlaps, cell: TargetCell) -> dict[str, Any]:
    return {
        "box": str(cell.box),
        "ranks": list(cell.ranks),
        "takes": [
            {
                "source": overlaps.parameter.sources[overlap.source].name,
                "source_rank": overlap.source_rank,
                "source_box": str(overlap.source_box),
                "target_box": str(overlap.target_box),
                "size_bytes": overlaps.size_bytes(overlap),
            }
            for overlap in cell.overlaps
        ],
    }
