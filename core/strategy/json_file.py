"""Strategy files in JSON.

    {"current_stage": 1,
     "parallel_strategy_item": {operator: {"stage": 0, "parallel_strategy": [[..], ..]}},
     "parallel_layout_item": {parameter: {"dev_matrix": [..], "tensor_map": [..], "tensor_shape": [..], "field": 0,
                              "opt_weight_shard_step": 0, "opt_weight_shard_size": 0
                              [, "param_split_shape": [..], "indices_offset": [..]]}}}

Unlike protobuf, JSON cannot represent a tensor axis sharded by several device axes (refused), nor two operators of one
name (the first one, of the lowest stage, is kept; MindSpore keeps the one that it merges last; neither affects where
data is). Only JSON has `tensor_shape`. It is omitted where unknown: MindSpore's merging and conversion never read it,
and its training reports that it is missing, but would believe an invented one.
"""

import json
from collections.abc import Mapping

from msgspec.structs import replace

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.runtime.metadata import DuplicateKeyError, load_json
from reshard.core.strategy.file_kinds import START_BYTES, guess_suffix
from reshard.core.strategy.model import OperatorStrategy, Strategy
from reshard.core.strategy.records import (
    CURRENT_STAGE,
    REPEATED,
    StrategyRecords,
    assemble_strategy,
    decode_axes,
    encode_axes,
    list_records,
)
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape


class _UnsuitableError(ValueError):
    """A value has the wrong type or range; the message says where."""


def parse_json(data: bytes, origin: str) -> Strategy:
    """Parse a JSON strategy; `origin` names the file in messages.

    Unknown keys are ignored: newer versions of MindSpore write more of them, all about operators.
    """
    if not data.strip():
        raise StrategyError(f"{origin}: is empty, not a strategy")
    try:
        document = load_json(data, origin)
        items = _object(document, "the document")
        operators = _object(items.get("parallel_strategy_item", {}), "parallel_strategy_item")
        layouts = _object(_required(items, "parallel_layout_item"), "parallel_layout_item")
        records = StrategyRecords(
            [_parse_operator(name, item) for name, item in operators.items()],
            [(name, _parse_layout(item, f"parameter {name!r}")) for name, item in layouts.items()],
        )
    except (_UnsuitableError, DuplicateKeyError) as error:
        raise StrategyError(f"{origin}: is not a strategy: {error}") from error
    except (ValueError, RecursionError) as error:
        what = guess_suffix(data[:START_BYTES]) or _reason(data, error)
        raise StrategyError(f"{origin}: is not a JSON strategy{what}") from error
    return assemble_strategy(records, origin)


def build_json(strategy: Strategy) -> bytes:
    """Return the bytes of a strategy's JSON file."""
    records = list_records(strategy)
    operators: dict[str, object] = {}
    for operator in records.operators:
        item = {"stage": operator.stage, "parallel_strategy": operator.dims}
        operators.setdefault(operator.node_name, item)
    document = {
        "current_stage": CURRENT_STAGE,
        "parallel_strategy_item": operators,
        "parallel_layout_item": {
            name: _build_layout(layout, f"{strategy.origin}: parameter {name!r}") for name, layout in records.layouts
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _reason(data: bytes, error: Exception) -> str:
    if data[:1] == b"\x08":
        return "; it looks like a protobuf one, whose name must not end in .json"
    if isinstance(error, json.JSONDecodeError):
        return f": {error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f": no UTF-8 text at byte {error.start}"
    return ": it is nested too deeply, or has a number of thousands of digits"


def _parse_operator(name: str, value: object) -> OperatorStrategy:
    item = _object(value, f"operator {name!r}")
    where = f"operator {name!r}: "
    dims = _list(_required(item, "parallel_strategy", where), f"{where}parallel_strategy")
    stage = _integer(_required(item, "stage", where), f"{where}stage")
    return OperatorStrategy(name, stage, tuple(_integers(sizes, f"{where}parallel_strategy") for sizes in dims))


def _parse_layout(value: object, parameter: str) -> ParameterLayout:
    item = _object(value, parameter)

    def number(key: str) -> int:
        return _integer(_required(item, key, f"{parameter}: "), f"{parameter}: {key}")

    def numbers(key: str) -> Shape:
        return _integers(_required(item, key, f"{parameter}: "), f"{parameter}: {key}")

    tensor_map = numbers("tensor_map")
    if min(tensor_map, default=0) < REPEATED:
        raise _UnsuitableError(f"{parameter}: tensor_map is {list(tensor_map)}: neither device axes nor {REPEATED}")
    return ParameterLayout(
        device_matrix=numbers("dev_matrix"),
        tensor_map=tuple(decode_axes((axis,)) for axis in tensor_map),
        optimizer_shard_step=number("opt_weight_shard_step"),
        optimizer_shard_size=number("opt_weight_shard_size"),
        field=number("field"),
        param_split_shape=numbers("param_split_shape") if "param_split_shape" in item else (),
        indices_offset=numbers("indices_offset") if "indices_offset" in item else (),
        tensor_shape=numbers("tensor_shape") if "tensor_shape" in item else None,
    )


def _build_layout(layout: ParameterLayout, where: str) -> dict[str, object]:
    if layout.nested:
        _check_flat(layout, where)
    item: dict[str, object] = {
        "dev_matrix": layout.device_matrix,
        "tensor_map": [axis for axes in layout.tensor_map for axis in encode_axes(axes)],
    }
    if layout.tensor_shape is not None:
        item["tensor_shape"] = layout.tensor_shape
    item["field"] = layout.field
    item["opt_weight_shard_step"] = layout.optimizer_shard_step
    item["opt_weight_shard_size"] = layout.optimizer_shard_size
    if layout.param_split_shape:
        item["param_split_shape"] = layout.param_split_shape
        item["indices_offset"] = layout.indices_offset
    return item


def _check_flat(layout: ParameterLayout, where: str) -> None:
    """A nested map is written as a flat one where both mean the same."""
    if any(len(axes) > 1 for axes in layout.tensor_map):
        raise StrategyError(
            f"{where}: its tensor map {[list(axes) for axes in layout.tensor_map]} cuts a tensor axis by several "
            "device axes, which a JSON strategy cannot hold: write it under a name that does not end in .json"
        )
    try:
        # the optimizer shard's step has a rule for flat maps only
        replace(layout, nested=False).shard_grid(len(layout.tensor_map))
    except LayoutError as error:
        raise StrategyError(f"{where}: cannot be written as JSON: {error}") from error


def _required(item: Mapping[str, object], key: str, where: str = "") -> object:
    if key not in item:
        raise _UnsuitableError(f"{where}has no {key!r}")
    return item[key]


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _UnsuitableError(f"{what} is {_shortened(value)}, not an object")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise _UnsuitableError(f"{what} is {_shortened(value)}, not a list")
    return value


def _integers(value: object, what: str) -> Shape:
    return tuple(_integer(number, f"{what} entry") for number in _list(value, what))


def _integer(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _UnsuitableError(f"{what} is {_shortened(value)}, not an integer")
    return value


def _shortened(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"
