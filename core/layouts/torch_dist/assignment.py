"""Targets in the form of Megatron-Core's `torch_dist`: a parameter for each layer and each expert, in DCP's files.

A parameter is planned with the first axes of the stored tensor that it is a part of: `decoder.layers.3.…` as
[1, rows, columns] of [layers, rows, columns]. Only the metadata puts parameters together.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec.structs import replace

from reshard.core.errors import LayoutError, PlanError, raise_problems
from reshard.core.layouts.dcp.assignment import misfits, rows_layout
from reshard.core.layouts.dcp.names import data_name
from reshard.core.layouts.megatron.args_writing import model_args
from reshard.core.layouts.torch_dist.canonical import canonical
from reshard.core.layouts.torch_dist.names import is_of_optimizer, parse_state
from reshard.core.layouts.torch_dist.stacking import Stacking, stacking_of
from reshard.core.layouts.torch_dist.target import TorchDistTarget
from reshard.core.plan.model import FileStage, ParameterMatch, PlanInputs, ReshardedParameter, TargetFiles
from reshard.core.plan.target_files import in_source_order, written_once
from reshard.core.tensor.segments import Pieces, stacked
from reshard.core.text.options import option

_ONCE = "and a torch_dist checkpoint has it once"


def torch_dist_match(inputs: PlanInputs, match: ParameterMatch, target: TorchDistTarget) -> ParameterMatch:
    """Turn the match of one whole rank into that of a `torch_dist` directory.

    Raises:
        PlanError: a parameter has no place in such a directory, differs between source ranks, or none is left.
    """
    catalog = inputs.catalog
    headline = f"{catalog.url}: cannot become a torch_dist checkpoint"
    problems: list[str] = []
    outside = [written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through]
    parameters = [*match.resharded, *outside]
    problems += misfits(parameters)
    raise_problems(PlanError, headline, problems)
    named = list(canonical(parameters, problems))
    problems += _state_problems(named)
    raise_problems(PlanError, headline, problems)
    if not named:
        raise PlanError(f"{headline}: no parameter is left of it")
    try:
        stacking = stacking_of(_kinds(named), target)
        _check_args(named, target)
    except LayoutError as error:
        raise PlanError(f"{headline}: {error.marked}") from None
    files = range(target.shards)
    placed = [_in_rows(each, stacking, target.shards) for each in named]
    return replace(
        match,
        resharded=tuple(in_source_order(catalog, placed)),
        passed_through=(),
        files=TargetFiles(
            names=tuple(map(data_name, files)),
            stages=(FileStage(0, "", 0, files, files),),
            outside=tuple(each.name for each in outside) if inputs.source_strategy else (),
        ),
    )


def planned_stacking(match: ParameterMatch, target: TorchDistTarget) -> Stacking:
    """Return how the parameters of a finished match are stored."""
    return stacking_of(_kinds(match.resharded), target)


def _kinds(parameters: Sequence[ReshardedParameter]) -> dict[str, object]:
    return {each.name: (each.dtype, each.shape) for each in parameters}


def _check_args(parameters: Sequence[ReshardedParameter], target: TorchDistTarget) -> None:
    """Refuse what the arguments of a training cannot be made of."""
    from reshard.core.layouts.torch_dist.common import source_args

    model_args(
        {each.name: each.shape for each in parameters},
        {each.name: each.dtype for each in parameters},
        target.heads,
        source_args(target.common),
    )


def _state_problems(parameters: Sequence[ReshardedParameter]) -> Iterator[str]:
    shapes = {each.name: each.shape for each in parameters}
    for name, shape in shapes.items():
        prefix, weight = parse_state(name)
        if (prefix and shapes.get(weight) != shape) or (is_of_optimizer(name) and not prefix):
            there = (
                f"{weight!r} has {list(shapes[weight])}" if prefix and weight in shapes else "its weight is not there"
            )
            yield (
                f"parameter {name!r} is optimizer state of shape {list(shape)}, but {there}: leave all optimizer state "
                f"out, {option('select', 'weights-only')}"
            )


def _in_rows(parameter: ReshardedParameter, stacking: Stacking, files: int) -> ReshardedParameter:
    axes = stacking.axes(parameter.name)
    shape = (1,) * axes + parameter.shape
    pieces = _with_axes(parameter.pieces, axes)
    return replace(parameter, pieces=pieces, shape=shape, target_layouts={0: rows_layout(shape, files, axes)})


# parameters that are made alike keep sharing their pieces, and so their classes
@lru_cache(maxsize=4096)
def _with_axes(pieces: Pieces, axes: int) -> Pieces:
    for _ in range(axes):
        pieces = stacked((pieces,))
    return pieces
