"""metadata.json of MindFormers' Checkpoint 2.0: how each tensor is sharded, and which files hold the shards.

    {"state_dict_metadata": {NAME: {"properties": {"dtype": "BFloat16", …}, "global_shape": [48, 12],
         "axis_fragmentations": [2, 1], "layout": {"device_matrix": [2, 2], "tensor_map": [0, -1], …, "rank_list": […]},
         "chunk": [{"global_offset": [0], "local_shape": [24, 12]}, …]}},
     "storage_data": {"('NAME', (0,))": [{"file_name": …, "storage_rank": 0, "rank_group": [0, 2]}, …]}}

`global_offset` and the number in a key are the shard's index, row-major over `axis_fragmentations`. A layout holds for
the ranks of one pipeline stage, the lowest with the tensor; without a layout a tensor is not sharded. Everything is
compared with everything else: MindFormers itself reads only `layout` and `storage_rank`.
"""

import ast
import math
import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, field

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.layouts.checkpoint2.names import parse_tensor_file
from reshard.core.runtime.metadata import check_unique_keys, parsing
from reshard.core.runtime.records import Record
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape

MAX_RANKS = 1 << 20
_MAX_AXES = 32
_MEMBER_BYTES = 120
"""Memory for a member of an object; measured: 105 bytes for one whose value is left unparsed."""
_MAX_KEY_CHARACTERS = 1 << 16
_KEY = re.compile(r"\('([^'\\]*)', \((0|[1-9]\d{0,17}),\)\)", re.ASCII)


class ListedTensor(Record):
    """A tensor in metadata.json.

    Attributes:
        shape: shape of the whole tensor.
        local_shape: shape of each shard.
        layout: its sharding over `ranks`; None: every rank that has it has all of it.
        ranks: the ranks of the layout, which are a pipeline stage; empty without a layout.
    """

    name: str
    dtype: str
    shape: Shape
    local_shape: Shape
    layout: ParameterLayout | None
    ranks: range


class ListedFile(Record):
    """A file of tensors: the rank that wrote it, and the names of its tensors."""

    name: str
    rank: int
    tensors: Sequence[str]


class Metadata(Record):
    """What metadata.json says.

    Attributes:
        tensors: name -> tensor, in the document's order.
        files: name -> file.
        strategy: the layouts of all stages.
    """

    origin: str
    tensors: Mapping[str, ListedTensor]
    files: Mapping[str, ListedFile]
    strategy: Strategy


class _Layout(msgspec.Struct, gc=False):
    device_matrix: list[int]
    tensor_map: list[int | list[int]]
    interleaved_parallel: bool
    rank_list: list[int]


class _Chunk(msgspec.Struct, gc=False):
    global_offset: list[int]
    local_shape: list[int]


class _Properties(msgspec.Struct, gc=False):
    dtype: str


class _Tensor(msgspec.Struct, gc=False):
    properties: _Properties
    global_shape: list[int]
    axis_fragmentations: list[int]
    layout: _Layout | None
    chunk: list[_Chunk]


class _Entry(msgspec.Struct, gc=False):
    file_name: str
    storage_rank: int


class _Document(msgspec.Struct):
    """Values are parsed one by one: those of a large job take gigabytes as objects."""

    state_dict_metadata: dict[str, msgspec.Raw]
    storage_data: dict[str, msgspec.Raw]


class _Found(Struct):
    """A tensor while the document is read.

    Attributes:
        cells: index of the shard of each rank of a stage.
        is_uniform: all shards listed for it have the local shape of its layout.
        stages: other stages that store it -> True if they shard it as its layout says.
    """

    tensor: ListedTensor
    cells: Sequence[int]
    is_uniform: bool
    stages: dict[int, bool] = field(default_factory=dict)


def parse_metadata(data: bytes, origin: str) -> Metadata:
    """Parse metadata.json; `origin` names it in messages.

    Raises:
        StrategyError: it is damaged, contradicts itself, or shards a tensor unevenly.
        LimitError: parsing would exceed the memory limit.
    """
    with parsing(origin) as parse:
        text_width = 1 if data.isascii() else 4
        parse.take(len(data) * (1 + text_width) + data.count(b":") * _MEMBER_BYTES)
        try:
            check_unique_keys(data)  # msgspec takes the last
            document = msgspec.json.decode(data, type=_Document)
            found = _parse_tensors(document.state_dict_metadata, origin)
            files = _parse_storage(document.storage_data, found, origin)
            _check_ranks(files, len(data), origin)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise StrategyError(f"{origin}: is not the metadata of a Checkpoint 2.0: {error}") from error
        strategy = _strategy(found, files, origin)
    return Metadata(origin, {name: each.tensor for name, each in found.items()}, files, strategy)


def _parse_tensors(raw: Mapping[str, msgspec.Raw], origin: str) -> dict[str, _Found]:
    decoder = msgspec.json.Decoder(_Tensor)
    found: dict[str, _Found] = {}
    cells_of: dict[tuple[ParameterLayout, int], Sequence[int]] = {}
    for name, value in raw.items():
        try:
            found[name] = _parse_tensor(name, decoder.decode(value), cells_of)
        except (LayoutError, msgspec.ValidationError) as error:
            raise StrategyError(f"{origin}: parameter {name!r}: {error}") from error
    return found


def _parse_tensor(name: str, read: _Tensor, cells_of: dict[tuple[ParameterLayout, int], Sequence[int]]) -> _Found:
    shape, pieces = tuple(read.global_shape), tuple(read.axis_fragmentations)
    if len(shape) > _MAX_AXES or not all(0 <= length < 2**63 for length in shape):
        raise LayoutError(f"its global_shape is {list(shape[:_MAX_AXES])}")
    layout, ranks = (None, range(0)) if read.layout is None else _parse_layout(read.layout, shape)
    expected = (1,) * len(shape) if layout is None else layout.shard_grid(len(shape)).pieces
    if pieces != expected:
        raise LayoutError(f"its axis_fragmentations are {list(pieces)[:_MAX_AXES]}, its layout gives {list(expected)}")
    for axis, (length, count) in enumerate(zip(shape, pieces, strict=True)):
        if length % count:
            raise LayoutError(
                f"axis {axis} has {length} elements, which {count} shards cannot share evenly: MindFormers leaves "
                "elements out of such shards, so they are not in the files"
            )
    local = tuple(length // count for length, count in zip(shape, pieces, strict=True))
    shard_count = math.prod(pieces)
    for chunk in read.chunk:
        if len(chunk.global_offset) != 1 or not 0 <= chunk.global_offset[0] < MAX_RANKS:
            raise LayoutError(f"the global_offset of a chunk is {chunk.global_offset[:4]}, not one shard's index")
    is_uniform = all(tuple(chunk.local_shape) == local and chunk.global_offset[0] < shard_count for chunk in read.chunk)
    if layout is None and not is_uniform:
        raise LayoutError("it has no layout, but a chunk that is not all of it")
    if not any(tuple(chunk.local_shape) == local for chunk in read.chunk):
        raise LayoutError(f"none of its chunks has the local_shape that its layout gives, {list(local)}")
    tensor = ListedTensor(name, read.properties.dtype, shape, local, layout, ranks)
    if layout is None:
        return _Found(tensor, (), is_uniform)
    key = layout, len(shape)
    if key not in cells_of:
        grid = layout.shard_grid(len(shape))
        strides = [math.prod(pieces[axis + 1 :]) for axis in range(len(pieces))]
        cells_of[key] = (grid.cells @ strides).tolist() if strides else [0] * grid.device_count
    return _Found(tensor, cells_of[key], is_uniform)


def _device_axes(entry: int | list[int]) -> tuple[int, ...]:
    """The device axes that cut one axis of a tensor; none for -1."""
    if isinstance(entry, list):
        return tuple(entry)
    return () if entry == -1 else (entry,)


def _parse_layout(read: _Layout, shape: Shape) -> tuple[ParameterLayout, range]:
    if read.interleaved_parallel:
        raise LayoutError("its layout is interleaved (interleaved_parallel), which reshard cannot read")
    matrix = tuple(read.device_matrix)
    if not all(1 <= size <= MAX_RANKS for size in matrix) or len(matrix) > _MAX_AXES or math.prod(matrix) > MAX_RANKS:
        raise LayoutError(f"its device_matrix is {list(matrix)[:_MAX_AXES]}")
    axes = tuple(_device_axes(entry) for entry in read.tensor_map)
    if len(axes) != len(shape):
        raise LayoutError(f"its tensor_map has {len(axes)} entries, its global_shape {len(shape)}")
    count, first = math.prod(matrix), read.rank_list[0] if read.rank_list else -1
    ranks = range(first, first + count)
    if not 0 <= first <= MAX_RANKS or first % count or read.rank_list != list(ranks):
        raise LayoutError(
            f"its rank_list is not the ranks of one pipeline stage of {count} devices: {read.rank_list[:8]}"
        )
    nested = any(len(entry) > 1 for entry in axes)
    return ParameterLayout(matrix, axes, nested=nested, tensor_shape=shape), ranks


def _parse_storage(raw: Mapping[str, msgspec.Raw], found: Mapping[str, _Found], origin: str) -> dict[str, ListedFile]:
    decoder = msgspec.json.Decoder(list[_Entry])
    writers: dict[str, int] = {}
    tensors: dict[str, dict[str, None]] = {}
    for key, value in raw.items():
        name, number = _parse_key(key, origin)
        each = found.get(name)
        if each is None:
            raise StrategyError(f"{origin}: storage_data places parameter {name!r}, which state_dict_metadata lacks")
        try:
            entries = decoder.decode(value)
        except msgspec.ValidationError as error:
            raise StrategyError(f"{origin}: storage_data of {name!r}: {error}") from error
        for entry in entries:
            rank = entry.storage_rank
            known = writers.get(entry.file_name)
            if known is None:
                _check_entry(entry, name, origin)
                writers[entry.file_name] = rank
                tensors[entry.file_name] = {}
            elif known != rank:
                raise StrategyError(f"{origin}: says that both rank_{known} and rank_{rank} wrote {entry.file_name}")
            _place(each, number, rank, origin)
            tensors[entry.file_name][name] = None
    return {name: ListedFile(name, rank, tuple(tensors[name])) for name, rank in writers.items()}


def _parse_key(key: str, origin: str) -> tuple[str, int]:
    match = _KEY.fullmatch(key)
    if match:
        return match[1], int(match[2])
    if len(key) <= _MAX_KEY_CHARACTERS:
        try:
            parsed = ast.literal_eval(key)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            parsed = None
        match parsed:
            case (str(name), (int(number),)) if number >= 0 and not isinstance(number, bool):
                return name, number
    raise StrategyError(f"{origin}: storage_data has the key {key[:80]!r}, which is not \"('NAME', (INDEX,))\"")


def _check_entry(entry: _Entry, name: str, origin: str) -> None:
    if parse_tensor_file(entry.file_name) is None:
        raise StrategyError(
            f"{origin}: places parameter {name!r} in {entry.file_name[:200]!r}, which is not the name of a file beside "
            "it, [PREFIX-]model-NUMBER-COUNT.safetensors or [PREFIX-]opt-…"
        )
    if not 0 <= entry.storage_rank < MAX_RANKS:
        raise StrategyError(f"{origin}: says that rank {entry.storage_rank} wrote {entry.file_name}")


def _place(each: _Found, number: int, rank: int, origin: str) -> None:
    """Check that a rank may hold a shard of that number; note a stage other than the layout's."""
    tensor = each.tensor
    if tensor.layout is None:
        if number:
            raise StrategyError(f"{origin}: places shard {number} of {tensor.name!r}, which is not sharded")
        return
    stage_rank = rank - tensor.ranks.start
    if 0 <= stage_rank < len(each.cells):
        if each.cells[stage_rank] != number:
            raise StrategyError(
                f"{origin}: places shard {number} of {tensor.name!r} on rank_{rank}, to which its layout gives shard "
                f"{each.cells[stage_rank]}"
            )
        return
    stage, stage_rank = divmod(rank, len(each.cells))
    each.stages[stage] = each.stages.get(stage, True) and each.cells[stage_rank] == number


def _check_ranks(files: Mapping[str, ListedFile], size_bytes: int, origin: str) -> None:
    """Refuse ranks that the document cannot be of: each of a job's ranks is in it, a digit and a comma at least."""
    last = max(files.values(), key=lambda file: file.rank, default=None)
    if last is not None and 2 * last.rank > size_bytes:
        raise StrategyError(
            f"{origin}: says that rank_{last.rank} wrote {last.name}, but is too short for so many ranks"
        )


def _strategy(found: Mapping[str, _Found], files: Mapping[str, ListedFile], origin: str) -> Strategy:
    counts = {len(each.cells): name for name, each in found.items() if each.cells}
    if len(counts) > 1:
        (one, name), (other, other_name) = sorted(counts.items())[:2]
        raise StrategyError(
            f"{origin}: the layout of {name!r} is over {one} devices, that of {other_name!r} over {other}: the stages "
            "of one checkpoint have equally many"
        )
    highest = max((each.rank for each in files.values()), default=0)
    ends = [each.tensor.ranks.stop for each in found.values() if each.cells]
    devices = next(iter(counts), highest + 1)
    stage_count = -(-max([highest + 1, *ends]) // devices)
    stages: list[dict[str, ParameterLayout]] = [{} for _ in range(stage_count)]
    for name, each in found.items():
        layout = each.tensor.layout
        if layout is None:
            continue
        stages[each.tensor.ranks.start // devices][name] = layout
        # elsewhere the layout holds only if all that is known of the shards there agrees with it
        for stage, fits in each.stages.items() if each.is_uniform else ():
            if fits:
                stages[stage][name] = layout
    return Strategy(
        tuple(StageStrategy(number, layouts, devices=devices) for number, layouts in enumerate(stages)),
        origin,
        unsharded={name: len(each.tensor.shape) for name, each in found.items() if each.tensor.layout is None},
    )
