"""Format-independent content of a strategy file, and its conversion to and from a Strategy.

A file is a list of *records*: operator strategies, and layouts under the names that parameters have in the file. In a
merged file each name begins with its stage, `"{stage}-"`; a stage's own file has plain names, and its stage is that of
its first operator strategy. Both formats read and write records; this module alone interprets the names and checks the
rules that all files obey.
"""

import math
import re
from collections.abc import Iterable, Sequence

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.runtime.records import Record
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.tensor.slices import Shape

REPEATED = -1
"""Marks, in a tensor map, a tensor axis that no device axis shards."""

CURRENT_STAGE = 1
"""`current_stage` of every file: MindSpore writes 1 and never reads it."""

# the first dash separates; the parameter's own name may contain more
_STAGE_PREFIX = re.compile(r"([0-9]{1,10})-", re.ASCII)

# Ranks get enumerated, so an implausible number of devices is refused first: a million is ten times the
# largest cluster. numpy can number the coordinates of at most 64 axes.
_MAX_DEVICES = 1 << 20
_MAX_DEVICE_AXES = 64


class StrategyRecords(Record):
    """Content of a strategy file, in its order; `layouts` pairs parameter names as in the file with layouts."""

    operators: Sequence[OperatorStrategy]
    layouts: Sequence[tuple[str, ParameterLayout]]


def assemble_strategy(records: StrategyRecords, origin: str) -> Strategy:
    """Build the strategy that a file's records describe: merged if every parameter's name begins with a stage.

    A stage's own file without operator strategies does not show its stage. Like MindSpore this assumes stage 0, which
    is right where there is only one stage; a caller that reads several files must refuse such a one.
    """
    if not records.layouts:
        raise StrategyError(f"{origin}: has no parameter layouts: a strategy saved before compiling, or not a strategy")
    _check_records(records, origin)
    if all(_STAGE_PREFIX.match(name) for name, _ in records.layouts):
        return Strategy(tuple(_split_stages(records, origin)), origin)
    stage = records.operators[0].stage if records.operators else 0
    own = StageStrategy(stage, _unique(records.layouts, origin), tuple(records.operators))
    return Strategy((own,), origin, merged=False)


def list_records(strategy: Strategy) -> StrategyRecords:
    """Return the records to write for a strategy; reading them restores it.

    Raises:
        StrategyError: a layout is impossible, or a stage's own strategy would be read back as something else.
    """
    if not strategy.merged:
        _check_own(strategy)
    layouts = [
        (f"{stage.stage}-{name}" if strategy.merged else name, layout)
        for stage in strategy.stages
        for name, layout in stage.layouts.items()
    ]
    records = StrategyRecords([operator for stage in strategy.stages for operator in stage.operators], layouts)
    _check_records(records, strategy.origin)
    return records


def check_layouts(strategy: Strategy) -> None:
    """Check a strategy of another origin as strictly as one from a file; a StrategyError if a layout is impossible."""
    for stage in strategy.stages:
        counts = stage.stage, stage.device_count
        if any(type(number) is not int or not 0 <= number <= _MAX_DEVICES for number in counts):
            raise StrategyError(f"{strategy.origin}: stage {stage.stage!r} cannot have {stage.device_count!r} devices")
    layouts = [(name, layout) for stage in strategy.stages for name, layout in stage.layouts.items()]
    for name, layout in layouts:
        shape = layout.tensor_shape
        numbers = (
            *layout.device_matrix,
            *(axis for axes in layout.tensor_map for axis in axes),
            *(layout.optimizer_shard_step, layout.optimizer_shard_size, layout.field),
            *(*layout.param_split_shape, *layout.indices_offset, *(shape or ())),
        )
        if any(type(number) is not int for number in numbers) or type(layout.nested) is not bool:
            raise StrategyError(f"{strategy.origin}: parameter {name!r}: its layout has values that are not integers")
    _check_records(StrategyRecords((), layouts), strategy.origin)


def decode_axes(axes: Sequence[int]) -> Shape:
    """Return the device axes that shard one tensor axis, from a file's list: a sole -1 means none."""
    return () if tuple(axes) == (REPEATED,) else tuple(axes)


def encode_axes(axes: Shape) -> Shape:
    """Return a file's list of the device axes that shard one tensor axis."""
    return axes or (REPEATED,)


def _split_stages(records: StrategyRecords, origin: str) -> Iterable[StageStrategy]:
    layouts: dict[int, list[tuple[str, ParameterLayout]]] = {}
    for name, layout in records.layouts:
        prefix, _, plain_name = name.partition("-")
        layouts.setdefault(int(prefix), []).append((plain_name, layout))
    # an operator of a stage without parameters matters nowhere: keep it with the first stage
    operators: dict[int, list[OperatorStrategy]] = {stage: [] for stage in sorted(layouts)}
    first = next(iter(operators))
    for operator in records.operators:
        operators.get(operator.stage, operators[first]).append(operator)
    for stage, of_stage in operators.items():
        yield StageStrategy(stage, _unique(layouts[stage], origin), tuple(of_stage))


def _unique(layouts: Iterable[tuple[str, ParameterLayout]], origin: str) -> dict[str, ParameterLayout]:
    unique: dict[str, ParameterLayout] = {}
    for name, layout in layouts:
        if not name:
            raise StrategyError(f"{origin}: has a parameter without a name")
        if name in unique:
            raise StrategyError(f"{origin}: parameter {name!r} occurs twice")
        unique[name] = layout
    return unique


def _check_own(strategy: Strategy) -> None:
    (stage,) = strategy.stages
    stage_in_file = stage.operators[0].stage if stage.operators else 0
    if stage_in_file != stage.stage:
        reason = f"its first one is of stage {stage_in_file}" if stage.operators else "it has none"
        raise StrategyError(
            f"{strategy.origin}: cannot be written as a file of its own: only operator strategies could show it to be "
            f"stage {stage.stage}, and {reason}. Write the merged strategy instead"
        )
    if all(_STAGE_PREFIX.match(name) for name in stage.layouts):
        raise StrategyError(
            f"{strategy.origin}: cannot be written as a file of its own: every parameter's name begins with a number "
            f"and '-' ({next(iter(stage.layouts))!r}), so it would be read as a merged one. Write it merged instead"
        )


def _check_records(records: StrategyRecords, origin: str) -> None:
    for operator in records.operators:
        numbers = (operator.stage, *(size for dims in operator.dims for size in dims))
        if not all(0 <= number < 1 << 32 for number in numbers):
            raise StrategyError(f"{origin}: operator {operator.node_name!r} has sizes or a stage beyond 0..2^32-1")
        _check_text(operator.node_name, origin)
    sound: set[tuple[ParameterLayout, Shape | None]] = set()
    for name, layout in records.layouts:
        _check_text(name, origin)
        kind = layout, layout.tensor_shape
        if kind in sound:
            continue
        problem = _layout_problem(layout)
        if not problem:
            sound.add(kind)
        else:
            raise StrategyError(f"{origin}: parameter {name!r}: {problem}")


def _check_text(name: str, origin: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise StrategyError(f"{origin}: the name {name!r} is not valid Unicode text") from error


def _layout_problem(layout: ParameterLayout) -> str | None:
    """Describe why a layout is impossible for any tensor and number of devices; None if it is possible."""
    matrix = layout.device_matrix
    if not 0 < len(matrix) <= _MAX_DEVICE_AXES or min(matrix) < 1:
        return f"its device matrix is {list(matrix[:16])}"
    if math.prod(matrix) > _MAX_DEVICES:
        return f"its device matrix {list(matrix)} has more than {_MAX_DEVICES} devices"
    shape = layout.tensor_shape
    try:
        layout.map_for(len(layout.tensor_map) if shape is None else len(shape))
    except LayoutError as error:
        return str(error)
    if layout.optimizer_shard_step < 0 or layout.optimizer_shard_size < ALL_REPEATED_AXES:
        return f"its optimizer shard has step {layout.optimizer_shard_step} and size {layout.optimizer_shard_size}"
    if min(layout.param_split_shape, default=0) < 0 or min(shape or (), default=0) < 0:
        return f"its param_split_shape {list(layout.param_split_shape)} or tensor_shape {shape} is negative"
    if layout.indices_offset and len(layout.indices_offset) != len(layout.param_split_shape):
        return (
            f"it has {len(layout.param_split_shape)} lengths in param_split_shape, "
            f"but {len(layout.indices_offset)} offsets in indices_offset"
        )
    return _overflow(layout)


def _overflow(layout: ParameterLayout) -> str | None:
    numbers = (layout.field, layout.optimizer_shard_step, layout.optimizer_shard_size)
    if any(not -(1 << 31) <= number < 1 << 31 for number in numbers):
        return "field, opt_weight_shard_step or opt_weight_shard_size does not fit 32 bits"
    lengths = (*layout.param_split_shape, *layout.indices_offset, *(layout.tensor_shape or ()))
    if any(not -(1 << 63) <= number < 1 << 63 for number in lengths):
        return "a length or offset does not fit 64 bits"
    return None
