"""`build_searched_strategy`, `merge_sliced_parameter` and `get_ckpt_path_with_strategy`."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.files.numpy_values import array_of, is_array_like
from reshard.core.mindspore_api.arguments import check_type
from reshard.core.mindspore_api.environment import rank_in_environment
from reshard.core.mindspore_api.failures import reading
from reshard.core.mindspore_api.paths import optional_strategy, required_strategy
from reshard.core.storage.listing import kind_of
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.protobuf_file import build_layouts, parse_layouts
from reshard.core.strategy.records import StrategyRecords, assemble_strategy, list_records
from reshard.core.strategy.strategy_pb2 import ParallelLayouts
from reshard.core.tensor.layout import ParameterLayout, cell_box

_RANK_FOLDER = re.compile(r"rank_([0-9]+)")
_NOT_WEIGHTS = ("accu_grads", "inputs")
"""Prefixes of entries that are not part of the model."""


def build_searched_strategy(strategy_filename: str | None) -> dict[str, ParallelLayouts] | None:
    """Return a strategy file's layouts as messages, by the names in the file, `"{stage}-{name}"` if it is merged.

    Raises:
        TypeError: `strategy_filename` is not a string.
        ValueError: there is no such file, it is empty, or it is not a strategy.
    """
    strategy = optional_strategy("strategy_filename", strategy_filename)
    if strategy is None:
        return None
    with reading():
        return {name: build_layouts(layout) for name, layout in list_records(strategy).layouts}


def merge_sliced_parameter(sliced_parameters: list[Any], strategy: Mapping[str, Any] | None = None) -> np.ndarray:
    """Merge ranks' slices into the whole parameter, by a strategy, or one after another along axis 0.

    Args:
        sliced_parameters: the slices, in the order of the ranks: arrays, `{"name", "data"}`, or parameters with a
            `name`, which become arrays.
        strategy: layouts by names, as `build_searched_strategy` returns them; of one parameter if slices have no names.

    Raises:
        TypeError: `sliced_parameters` is not a list of slices, or `strategy` is not a dict.
        ValueError: there are no slices, or they do not fit together, or not what the strategy says.
        KeyError: the strategy lacks the parameter.
    """
    check_type("sliced_parameters", sliced_parameters, list)
    if not sliced_parameters:
        raise ValueError("'sliced_parameters' is empty")
    if strategy and not isinstance(strategy, Mapping):
        raise TypeError(f"'strategy' has to be a dict, not {type(strategy)}")
    named = [_named_slice(item, number) for number, item in enumerate(sliced_parameters)]
    _check_alike(named)
    name, slices = named[0][0], [array for _, array in named]
    if not strategy:
        return _concatenated(slices)
    if name is None:
        if len(strategy) > 1:
            raise ValueError("slices without a name and a strategy of several parameters: which one is it?")
        [name] = strategy
    if name not in strategy:
        raise KeyError(f"the strategy has no parameter {name!r}")
    with reading():
        return merge_slices(slices, parse_layouts_of(name, strategy[name]), f"parameter {name!r}")


def merge_slices(slices: list[np.ndarray], layout: ParameterLayout, where: str) -> np.ndarray:
    """Merge the slices of a stage's ranks into the whole tensor; of replicas the last one counts."""
    try:
        cut = layout.shard_grid(slices[0].ndim)
        if len(slices) != cut.device_count:
            raise LayoutError(f"has {len(slices)} slices, its layout is for {cut.device_count} devices")
        if layout.field and not layout.param_split_shape:
            return _joined_fields(slices, layout.field)
        whole_shape = cut.whole_shape(0, slices[0].shape)
        bounds = cut.bounds(whole_shape)
        whole = np.empty(whole_shape, slices[0].dtype)
        for rank, array in enumerate(slices):
            box = cell_box(bounds, cut.cell_of(rank))
            if array.shape != box.shape:
                raise LayoutError(f"rank {rank}'s slice has shape {array.shape}, its layout gives {box.shape}")
            whole[box.as_index()] = array
    except LayoutError as error:
        raise LayoutError(f"{where}: {error.marked}") from None
    return whole


def strategy_of(name: str, given: Any) -> Strategy | None:
    """Return the strategy in a file, or of the layouts that `build_searched_strategy` returns; None if none is given.

    Raises:
        TypeError: the argument `name` is neither.
        ValueError: it is not a strategy.
    """
    if not isinstance(given, Mapping):
        return optional_strategy(name, given)
    with reading():
        layouts = [(each, parse_layouts_of(each, message)) for each, message in given.items()]
        return assemble_strategy(StrategyRecords([], layouts), name)


def parse_layouts_of(name: str, message: Any) -> ParameterLayout:
    """Parse a user's layout message; raise StrategyError if it is none."""
    try:
        return parse_layouts(message, f"parameter {name!r}")
    except (AttributeError, TypeError) as error:
        raise StrategyError(
            f"parameter {name!r}: {type(message)} is not a layout as build_searched_strategy gives"
        ) from error


def get_ckpt_path_with_strategy(cur_ckpt_path: str, cur_strategy_path: str) -> str | None:
    """Return the path of an existing checkpoint file with this rank's slices; None if there is none.

    It is the rank's own file, or that of a rank with the same slices: the same path with that rank in `rank_{rank}`. A
    path without `rank_` is returned if it exists.

    Raises:
        TypeError: an argument is not a string.
        ValueError: the strategy cannot be read, or is not for this rank; or the path names several ranks, and the
            environment none of them.
    """
    check_type("cur_ckpt_path", cur_ckpt_path, str)
    check_type("cur_strategy_path", cur_strategy_path, str)
    named = {int(rank) for rank in _RANK_FOLDER.findall(cur_ckpt_path)}
    launched = rank_in_environment()
    if not named:
        return cur_ckpt_path if _is_file(cur_ckpt_path) else None
    if (launched is None or launched in named) and _is_file(cur_ckpt_path):
        return cur_ckpt_path
    in_path = _rank_in_path(cur_ckpt_path, named, launched)
    strategy = required_strategy("cur_strategy_path", cur_strategy_path)
    with reading():
        ranks = _ranks_alike(strategy, in_path if launched is None else launched)
    paths = (_with_rank(cur_ckpt_path, in_path, other) for other in ranks)
    return next((path for path in paths if _is_file(path)), None)


def _named_slice(item: Any, number: int) -> tuple[str | None, np.ndarray]:
    name, data = getattr(item, "name", None), item
    if isinstance(item, Mapping):
        name, data = item.get("name"), item.get("data")
    if not is_array_like(data):
        raise TypeError(f"'sliced_parameters' has {type(item)} at index {number}, which neither is nor has an array")
    return name if isinstance(name, str) else None, array_of(data)


def _check_alike(named: list[tuple[str | None, np.ndarray]]) -> None:
    name, first = named[0]
    for number, (other_name, array) in enumerate(named):
        if (other_name, array.ndim, array.shape[1:]) != (name, first.ndim, first.shape[1:]):
            raise ValueError(
                f"the slice at index {number} is {other_name!r} of shape {array.shape}, the first one {name!r} of "
                f"{first.shape}: names and all axes but the first have to be the same"
            )
        if array.dtype != first.dtype:
            raise ValueError(f"the slice at index {number} is {array.dtype}, the first one {first.dtype}")


def _concatenated(slices: list[np.ndarray]) -> np.ndarray:
    if slices[0].ndim == 0:
        raise ValueError("scalars have no axis to be merged along")
    shape = (sum(len(array) for array in slices), *slices[0].shape[1:])
    # an explicit dtype keeps the mark of packed 4-bit integers
    return np.concatenate(slices, out=np.empty(shape, slices[0].dtype))


def _joined_fields(slices: list[np.ndarray], field: int) -> np.ndarray:
    """Join a table of several fields; every rank has rows of each field."""
    rows, *others = slices[0].shape
    if rows % field or any(array.shape != slices[0].shape for array in slices):
        raise LayoutError(
            f"slices of shapes {sorted({array.shape for array in slices})} do not divide by {field} fields"
        )
    parts = [array.reshape(field, rows // field, *others) for array in slices]
    return np.concatenate(parts, axis=1).reshape(-1, *others)


def _is_file(path: str) -> bool:
    with reading():
        return kind_of(parse_url(path)) == "file"


def _rank_in_path(path: str, named: set[int], launched: int | None) -> int:
    """The rank of a path; a directory above the ranks' own, such as a job's, may be named like a rank too."""
    if launched in named:
        return launched
    if len(named) > 1:
        raise ValueError(
            f"'cur_ckpt_path' names ranks {', '.join(map(str, sorted(named)))}: which is this process's? Set the "
            f"environment's RANK_ID: {path}"
        )
    [rank] = named
    return rank


def _with_rank(path: str, rank: int, other: int) -> str:
    return _RANK_FOLDER.sub(lambda found: f"rank_{other}" if int(found[1]) == rank else found[0], path)


def _ranks_alike(strategy: Strategy, rank: int) -> list[int]:
    """The ranks with the same slice of every parameter, ascending."""
    stage, first_rank = _stage_of(strategy, rank)
    alike = set(range(strategy.devices_per_stage))
    for name, layout in stage.layouts.items():
        if not name.startswith(_NOT_WEIGHTS):
            try:
                cut = layout.shard_grid(len(layout.tensor_map))
            except LayoutError as error:
                raise LayoutError(f"{strategy.origin}: parameter {name!r}: {error.marked}") from None
            alike &= set(cut.owners[cut.cell_of(rank - first_rank)])
    return [first_rank + other for other in sorted(alike)]


def _stage_of(strategy: Strategy, rank: int) -> tuple[StageStrategy, int]:
    """A rank's stage, and the stage's first rank; a stage's own strategy may be of any stage."""
    if not strategy.merged:
        return strategy.stages[0], rank - rank % strategy.devices_per_stage
    if rank not in strategy.ranks:
        raise StrategyError(f"{strategy.origin}: is for {len(strategy.ranks)} ranks, there is no rank {rank}")
    stage = strategy.stage_of(rank)
    return stage, strategy.stage_ranks(stage).start
