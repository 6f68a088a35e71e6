"""Targets in the form of DeepSpeed's universal checkpoint: every tensor is whole, in a file of its own.

The files count as the target's ranks. Floats become float32, which holds those of 16 bits exactly; other tensors, which
can only be buffers, are in the files of the model's state. The files of steps and settings hold no parameters.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.changes.training_state import state_kind
from reshard.core.errors import PlanError, raise_problems
from reshard.core.layouts.dcp.assignment import misfits
from reshard.core.layouts.universal.names import (
    MODEL_NAMES,
    MOMENTS,
    OPTIMIZER_NAME,
    STEP,
    WEIGHT,
    parse_state,
    tensor_path,
)
from reshard.core.layouts.universal.target import UniversalTarget
from reshard.core.plan.model import ParameterMatch, PlanInputs, ReshardedParameter, TargetFiles
from reshard.core.plan.target_files import in_source_order, written_once
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import whole_layout
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_ONCE = "and a universal checkpoint has it once"
_FLOAT32 = dtype_from_name("Float32")
_WIDENED = ("Float16", "BFloat16")
_MAX_NAME_BYTES = 255
_WEIGHTS_ONLY = option("select", "weights-only")


def universal_match(inputs: PlanInputs, match: ParameterMatch, target: UniversalTarget) -> ParameterMatch:
    """Turn the match of one whole rank into that of a universal checkpoint.

    Raises:
        PlanError: a parameter has no place in it, the optimizer's state is not complete, or no weight is left.
    """
    catalog = inputs.catalog
    headline = f"{catalog.url}: cannot become a universal checkpoint"
    problems: list[str] = []
    outside = [written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through]
    parameters = in_source_order(catalog, [*match.resharded, *outside])
    problems += misfits(parameters)
    raise_problems(PlanError, headline, problems)
    if not any(each.dtype.is_float and not parse_state(each.name)[0] for each in parameters):
        raise PlanError(f"{headline}: no weight is left of it")
    parameters = [_in_float32(each, problems) for each in parameters]
    problems += _name_problems([parse_state(each.name)[1] for each in parameters])
    problems += _state_problems({each.name: each.shape for each in parameters if each.dtype is _FLOAT32})
    problems += _foreign_state([each.name for each in parameters])
    raise_problems(PlanError, headline, problems)
    optimized = [parameter for state, parameter in (parse_state(each.name) for each in parameters) if state]
    if optimized and not target.optimizer_step:
        raise PlanError(
            f"{headline}: it has Adam's moments, and does not say after how many steps, without which training goes on "
            f"wrongly: give their number, {option('optimizer_step', 'N')}, or leave the moments out, {_WEIGHTS_ONLY}"
        )
    floats = [each for each in parameters if each.dtype is _FLOAT32]
    paths = [_path(each.name) for each in floats]
    paths += [tensor_path(name, STEP) for name in dict.fromkeys(optimized)]
    numbers = {path: number for number, path in enumerate([*paths, OPTIMIZER_NAME, *MODEL_NAMES])}
    return replace(
        match,
        resharded=tuple(_placed(each, numbers) for each in parameters),
        passed_through=(),
        files=TargetFiles(
            tuple(numbers), outside=tuple(each.name for each in outside) if inputs.source_strategy else ()
        ),
    )


def _path(name: str) -> str:
    state, parameter = parse_state(name)
    return tensor_path(parameter, state or WEIGHT)


def _placed(parameter: ReshardedParameter, numbers: Mapping[str, int]) -> ReshardedParameter:
    paths = [_path(parameter.name)] if parameter.dtype is _FLOAT32 else MODEL_NAMES
    layout = whole_layout(len(parameter.shape))
    return replace(parameter, target_layouts={numbers[path]: layout for path in paths})


def _in_float32(parameter: ReshardedParameter, problems: list[str]) -> ReshardedParameter:
    """A float of 16 bits widened, which loses nothing; a problem for floats that float32 does not hold."""
    if not parameter.dtype.is_float and not parameter.dtype.is_float8:
        return parameter
    is_cast = any(source.dtype != parameter.dtype for source in parameter.sources)
    if parameter.dtype != _FLOAT32 and (parameter.dtype.name not in _WIDENED or is_cast):
        name = parameter.name
        problems.append(
            f"parameter {name!r} is {parameter.dtype}, and DeepSpeed has all of them in float32: round it, "
            f"{option('cast', [f'{name}=float32'])}"
        )
    return replace(parameter, dtype=_FLOAT32)


def _name_problems(names: Sequence[str]) -> Iterator[str]:
    """Yield which parameters cannot be names of folders."""
    folders = Counter({name.casefold(): 0 for name in names})
    folders.update(name.casefold() for name in dict.fromkeys(names))
    for name in dict.fromkeys(names):
        why = _unfit(name)
        if not why and folders[name.casefold()] > 1:
            why = "and differs from another one only in upper and lower case, which not every storage tells apart"
        if why:
            yield (
                f"parameter {name!r} gets a folder of its name, {why}: give it another one, {option('rename')}, or "
                f"leave it out, {option('exclude')}"
            )


def _unfit(name: str) -> str:
    if name in ("", ".", "..") or not name.isprintable() or any(character in name for character in "/\\"):
        return "and folders cannot be named so"
    if len(name.encode()) > _MAX_NAME_BYTES:
        return f"whose name would have more than {_MAX_NAME_BYTES} bytes"
    return "which is the name of a file" if tensor_path(name, "").casefold().startswith(f"{OPTIMIZER_NAME}/") else ""


def _state_problems(shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Yield which moments lack their weight, or each other."""
    for name, shape in shapes.items():
        state, parameter = parse_state(name)
        if not state:
            continue
        if shapes.get(parameter) != shape:
            there = f"has {list(shapes[parameter])}" if parameter in shapes else "is not there as a float"
            yield f"{name!r} of shape {list(shape)} is the moment of {parameter!r}, which {there}: {_all_out()}"
        for other in MOMENTS:
            if f"{other}.{parameter}" not in shapes:
                yield f"{name!r} is there, but not {f'{other}.{parameter}'!r}: {_all_out()}"


def _foreign_state(names: Sequence[str]) -> Iterator[str]:
    """Yield the training state that has no place in a universal checkpoint."""
    known = frozenset(names)
    for name in names:
        kind = None if parse_state(name)[0] else state_kind(name, known)
        if kind is not None and not kind.is_of_network:
            yield (
                f"{name!r} is {kind}, and a universal checkpoint has exp_avg.NAME and exp_avg_sq.NAME for a parameter "
                f"NAME: rename it, {option('rename')}, leave it out, {option('exclude')}, or {_all_out()}"
            )


def _all_out() -> str:
    return f"leave all optimizer state out, {_WEIGHTS_ONLY}"
