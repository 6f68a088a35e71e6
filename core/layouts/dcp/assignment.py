"""Targets in the form of PyTorch's Distributed Checkpoint (DCP): files of shards, and metadata that places them.

The files count as the target's ranks: under a strategy one for each of its ranks, else as many as asked for, each with
some rows of every tensor. They are planned, written, verified and resumed as other ranks, but every slice is in one
file only: the one with the fewest bytes of those whose ranks own it.

What several pipeline stages have is in the lowest one. Parameters that no strategy knows are written once, so all
source ranks must hold the same values.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec.structs import replace

from reshard.core.errors import PlanError, raise_problems
from reshard.core.layouts.dcp.names import data_name
from reshard.core.plan.model import FileStage, ParameterMatch, PlanInputs, ReshardedParameter, TargetFiles
from reshard.core.plan.target_files import in_source_order, refuse_single_stage, written_once
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.dtypes import TEXT, torch_name
from reshard.core.tensor.layout import ParameterLayout, boxes_layout, whole_layout
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.text.options import option

_ONCE = "and a DCP checkpoint has it once"


def dcp_match(inputs: PlanInputs, match: ParameterMatch, shards: int) -> ParameterMatch:
    """Turn the match of a target of rank folders, or of one whole rank, into that of a DCP directory.

    Raises:
        PlanError: a parameter has no place in such a directory, differs between source ranks, or none is left.
    """
    catalog, strategy = inputs.catalog, inputs.target_strategy
    refuse_single_stage(strategy, match, "DCP checkpoint")
    problems: list[str] = []
    outside = [written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through]
    parameters = [*match.resharded, *outside]
    problems += misfits(parameters)
    raise_problems(PlanError, f"{catalog.url}: cannot become a DCP checkpoint", problems)
    if not parameters:
        raise PlanError(f"{catalog.url}: cannot become a DCP checkpoint: no parameter is left of it")
    stages = tuple(_file_stages(strategy, shards))
    outside_names = frozenset(each.name for each in outside)
    if strategy is None:
        placed = [_in_rows(each, len(stages[0].files)) for each in parameters]
    else:
        placed = [_whole(each, stages[0]) if each.name in outside_names else _in_lowest(each) for each in parameters]
    return replace(
        match,
        resharded=tuple(in_source_order(catalog, placed)),
        passed_through=(),
        files=TargetFiles(
            names=tuple(data_name(number) for stage in stages for number in stage.files),
            stages=stages,
            outside=tuple(each.name for each in outside) if inputs.source_strategy else (),
        ),
    )


def misfits(parameters: Sequence[ReshardedParameter]) -> Iterator[str]:
    """Yield what keeps parameters from becoming tensors of PyTorch."""
    for each in parameters:
        if torch_name(each.dtype) is None:
            kind = "text" if each.dtype is TEXT else str(each.dtype)
            yield (
                f"parameter {each.name!r} is a {kind}, for which PyTorch has no dtype; if the model does without it, "
                f"leave it out: {option('exclude', [each.name])}"
            )
        if not each.name:
            yield f"a parameter has no name: give it one, {option('rename')}"


def _file_stages(strategy: Strategy | None, shards: int) -> Iterator[FileStage]:
    if strategy is None:
        files = range(shards)
        yield FileStage(0, "", 0, files, files)
        return
    for number, stage in enumerate(strategy.stages):
        ranks = strategy.stage_ranks(stage)
        yield FileStage(number, "", stage.stage, ranks, ranks)


def _in_lowest(parameter: ReshardedParameter) -> ReshardedParameter:
    lowest = min(parameter.target_layouts)
    return replace(parameter, target_layouts={lowest: parameter.target_layouts[lowest]})


def _whole(parameter: ReshardedParameter, stage: FileStage) -> ReshardedParameter:
    return replace(parameter, target_layouts={stage.number: whole_layout(len(parameter.shape), len(stage.files))})


def _in_rows(parameter: ReshardedParameter, files: int) -> ReshardedParameter:
    return replace(parameter, target_layouts={0: rows_layout(parameter.shape, files)})


@lru_cache(maxsize=4096)
def rows_layout(shape: Shape, count: int, axis: int = 0) -> ParameterLayout:
    """Return the layout of a tensor whose rows are divided among `count` files, as FSDP divides them among ranks.

    Each has as many rows as the first, as long as there are rows; a scalar is whole, in one of them. Rows are what
    `axis` counts.
    """
    if len(shape) <= axis:
        return whole_layout(len(shape), count)
    step = -(-shape[axis] // count)
    lengths = tuple(min(step, max(0, shape[axis] - number * step)) for number in range(count))
    if axis and shape[axis] % count:
        return boxes_layout(ShardBoxes(shape, tuple(_rows(shape, lengths, axis))), count)
    uneven = lengths if shape[axis] % count else ()
    tensor_map = tuple((0,) if each == axis else () for each in range(len(shape)))
    return ParameterLayout((count,), tensor_map, nested=True, param_split_shape=uneven)


def _rows(shape: Shape, lengths: Sequence[int], axis: int) -> Iterator[tuple[int, TensorSlice]]:
    first = 0
    for rank, length in enumerate(lengths):
        start, stop = [0] * len(shape), list(shape)
        start[axis], stop[axis] = first, first + length
        first += length
        if length or not rank:
            yield rank, TensorSlice(tuple(start), tuple(stop))
