"""Strategy files in protobuf, MindSpore's usual format.

A tensor map is *flat* if one `tensor_map` message lists a device axis for each tensor axis, and *nested* if each tensor
axis has its own message listing all device axes that shard it. The nested map of a 1-d tensor would be a single
message, so MindSpore marks it by an empty second one.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError, Message

from reshard.core.errors import StrategyError
from reshard.core.runtime.metadata import parsing, protobuf_bytes
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
from reshard.core.strategy.strategy_pb2 import (
    ParallelGroupMap,
    ParallelLayoutItem,
    ParallelLayouts,
    ParallelStrategyItem,
    ParallelStrategyMap,
)
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape


class _Dims(Protocol):
    """A message with a list of numbers: DevMatrix, TensorMap, ParamSplitShape or IndicesOffset."""

    @property
    def dim(self) -> Sequence[int]: ...


def parse_protobuf(data: bytes, origin: str) -> Strategy:
    """Parse a protobuf strategy; `origin` names the file in messages.

    A file truncated exactly between two parameters is a valid shorter one: the format cannot show it.
    """
    if not data:
        raise StrategyError(f"{origin}: is empty, not a strategy")
    with parsing(origin) as parse:
        parse.take(protobuf_bytes(data))
        message = ParallelStrategyMap()
        if not _parse_into(message, data):
            raise StrategyError(f"{origin}: is not a strategy{_kind(data)}")
        records = StrategyRecords(
            [_parse_operator(item, origin) for item in message.parallel_strategy_item],
            _parse_items(message.parallel_layout_item, origin),
        )
    return assemble_strategy(records, origin)


def build_protobuf(strategy: Strategy) -> bytes:
    """Return the bytes of a strategy's protobuf file."""
    records = list_records(strategy)
    message = ParallelStrategyMap(current_stage=CURRENT_STAGE)
    for operator in records.operators:
        item = message.parallel_strategy_item.add(node_name=operator.node_name)
        item.parallel_strategys.stage = operator.stage
        for dims in operator.dims:
            item.parallel_strategys.parallel_strategy.add(dim=dims)
    for name, layout in records.layouts:
        message.parallel_layout_item.add(param_name=name).parallel_layouts.CopyFrom(build_layouts(layout))
    return message.SerializeToString()


def _parse_into(message: Message, data: bytes) -> bool:
    try:
        message.ParseFromString(data)
    except DecodeError:
        return False
    return message.IsInitialized()  # the parser accepts missing required fields


def _kind(data: bytes) -> str:
    guess = guess_suffix(data[:START_BYTES])
    if _parse_into(ParallelGroupMap(), data):
        return "; it looks like a group info file"
    if data.lstrip()[:1] == b"{":
        return "; it looks like a JSON one, whose name must end in .json"
    return guess or ": damaged, truncated, or another kind of file"


def _parse_operator(item: ParallelStrategyItem, origin: str) -> OperatorStrategy:
    strategys = item.parallel_strategys
    dims = tuple(tuple(strategy.dim) for strategy in strategys.parallel_strategy)
    return OperatorStrategy(_checked_name(item.node_name, origin), strategys.stage, dims)


def _parse_items(items: Iterable[ParallelLayoutItem], origin: str) -> list[tuple[str, ParameterLayout]]:
    """Parse names and layouts; thousands of parameters share a handful of layouts, each built once."""
    known: dict[bytes, ParameterLayout] = {}
    parsed = []
    for item in items:
        name = _checked_name(item.param_name, origin)
        key = item.parallel_layouts.SerializeToString()
        layout = known.get(key)
        if layout is None:
            layout = known[key] = parse_layouts(item.parallel_layouts, f"{origin}: parameter {name!r}")
        parsed.append((name, layout))
    return parsed


def parse_layouts(layouts: ParallelLayouts, where: str) -> ParameterLayout:
    """Parse a layout message, however impossible the layout; `where` names its parameter in messages."""
    return ParameterLayout(
        device_matrix=_single(layouts.dev_matrix, "dev_matrix", where),
        tensor_map=_parse_tensor_map(layouts.tensor_map, where),
        nested=len(layouts.tensor_map) > 1,
        optimizer_shard_step=layouts.opt_weight_shard_step,
        optimizer_shard_size=layouts.opt_weight_shard_size,
        field=layouts.field,
        param_split_shape=_optional(layouts.param_split_shape, "param_split_shape", where),
        indices_offset=_optional(layouts.indices_offset, "indices_offset", where),
    )


def _parse_tensor_map(messages: Sequence[_Dims], where: str) -> tuple[Shape, ...]:
    if len(messages) > 1:
        nested = tuple(decode_axes(message.dim) for message in messages if message.dim)
    else:
        nested = tuple(decode_axes((axis,)) for axis in _single(messages, "tensor_map", where))
    for axes in nested:
        if min(axes, default=0) < 0:
            raise StrategyError(f"{where}: its tensor map lists {list(axes)}: neither device axes nor {REPEATED} alone")
    return nested


def _single(messages: Sequence[_Dims], field: str, where: str) -> Shape:
    if len(messages) != 1:
        raise StrategyError(f"{where}: has {len(messages)} {field} messages, not one")
    return tuple(messages[0].dim)


def _optional(messages: Sequence[_Dims], field: str, where: str) -> Shape:
    return _single(messages, field, where) if messages else ()


def _checked_name(value: str | bytes, origin: str) -> str:
    # protobuf returns text that is not UTF-8 as bytes
    if isinstance(value, bytes):
        raise StrategyError(f"{origin}: the name {value!r} is not UTF-8 text: damaged, or not a strategy")
    return value


def build_layouts(layout: ParameterLayout) -> ParallelLayouts:
    """Return the message of a layout."""
    layouts = ParallelLayouts()
    layouts.dev_matrix.add(dim=layout.device_matrix)
    if layout.nested:
        for axes in layout.tensor_map:
            layouts.tensor_map.add(dim=encode_axes(axes))
        for _ in range(2 - len(layout.tensor_map)):
            layouts.tensor_map.add()
    else:
        layouts.tensor_map.add(dim=[axis for axes in layout.tensor_map for axis in encode_axes(axes)])
    # MindSpore reads the first of these two even if it is empty
    layouts.param_split_shape.add(dim=layout.param_split_shape)
    layouts.indices_offset.add(dim=layout.indices_offset)
    layouts.field = layout.field
    layouts.opt_weight_shard_step = layout.optimizer_shard_step
    layouts.opt_weight_shard_size = layout.optimizer_shard_size
    return layouts
