"""Fills a network from the `.ckpt` files of all ranks: merges their slices, and cuts the whole for one rank."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from reshard.core.errors import CatalogError, LayoutError
from reshard.core.files.any_format import read_index
from reshard.core.files.model import FileIndex
from reshard.core.files.numpy_values import Value
from reshard.core.mindspore_api.failures import reading
from reshard.core.mindspore_api.layouts import merge_slices
from reshard.core.mindspore_api.loading import open_readable, read_values
from reshard.core.mindspore_api.networks import Network, fill_network, names_in
from reshard.core.mindspore_api.paths import optional_strategy
from reshard.core.runtime.keys import Key
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import kind_of
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import ParameterLayout


def fill_from_ranks(
    network: Network,
    files: object,
    layouts: Mapping[str, ParameterLayout] | None,
    rank: int,
    strategy_file: str | None,
    strict: bool,
    key: Key | None,
) -> None:
    """Fill a network from the `.ckpt` files of all ranks of a strategy; `layouts` cut the merged tensors for `rank`."""
    locations = _checked_files(files)
    strategy = optional_strategy("train_strategy_filename", strategy_file)
    if strategy is None:
        raise ValueError("'train_strategy_filename' is needed: there is no network that would know it")
    if len(locations) != len(strategy.ranks):
        raise ValueError(f"{strategy.origin}: is for {len(strategy.ranks)} ranks, {len(locations)} files were given")
    with reading(), ExitStack() as stack:
        opened = []
        for location in locations:
            file = open_readable(location, key)
            stack.callback(file.close)
            opened.append((file, read_index(file)))
        values: dict[str, Value] = {}
        for name in names_in(network):
            whole = _merged(opened, strategy, name)
            if whole is not None:
                values[name] = whole if layouts is None else _shard(whole, name, layouts, rank)
    filling = fill_network(network, values, strict)
    filling.warn_of_suffixes(stacklevel=3)
    if filling.not_filled:
        missing = listed(sorted(filling.not_filled))
        warnings.warn(
            f"in the network, but not in the training strategy or not in the files: {missing}",
            stacklevel=3,
        )


def _checked_files(files: object) -> list[Location]:
    if not isinstance(files, list | tuple):
        raise TypeError(f"'checkpoint_filenames' has to be a list of files, not {type(files)}")
    locations = []
    for number, file in enumerate(files):
        if not isinstance(file, str) or not file.endswith(".ckpt"):
            raise ValueError(f"'checkpoint_filenames' has {file!r} at index {number}, not a .ckpt file's name")
        with reading():
            location = parse_url(file)
            if kind_of(location) != "file":
                raise CatalogError(f"'checkpoint_filenames' has {file} at index {number}, which is not a file")
        locations.append(location)
    return locations


def checked_layouts(predicted: Any) -> dict[str, ParameterLayout] | None:
    """Parse the lists of `predict_strategy`, by name; None for None."""
    if predicted is None:
        return None
    if not isinstance(predicted, Mapping):
        raise ValueError(f"'predict_strategy' has to be a dict of lists for .ckpt files, not {type(predicted)}")
    return {name: _checked_layout(name, layout) for name, layout in predicted.items()}


def _checked_layout(name: object, layout: Any) -> ParameterLayout:
    try:
        device_matrix, tensor_map, split_shape, field = layout[:4]
        numbers = [*device_matrix, *tensor_map, *(split_shape or []), field]
        sound = isinstance(name, str) and all(isinstance(number, int) for number in numbers) and field == 0
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ValueError(
            f"'predict_strategy' of {name!r}: has to be a list of the device matrix, the tensor map and the "
            f"param_split_shape, each a list of integers, and 0 for the field; not {layout!r}"
        )
    if len(layout) > 5 and layout[5]:
        raise ValueError(f"'predict_strategy' of {name!r}: communication group {layout[5]!r}: there are none here")
    axes = tuple(() if axis == -1 else (axis,) for axis in tensor_map)
    return ParameterLayout(tuple(device_matrix), axes, param_split_shape=tuple(split_shape or ()))


def _merged(opened: Sequence[tuple[SourceFile, FileIndex]], strategy: Strategy, name: str) -> np.ndarray | None:
    """The whole parameter, from the ranks of the first stage that has it; None if the strategy or the files lack it."""
    stage = next(strategy.stages_with(name), None)
    if stage is None:
        return None
    of_stage = [opened[rank - strategy.ranks.start] for rank in strategy.stage_ranks(stage)]
    missing_in = [str(file.location) for file, index in of_stage if name not in index.entries]
    if len(missing_in) == len(of_stage):
        return None
    if missing_in:
        raise CatalogError(f"parameter {name!r} is missing in {listed(missing_in)}, though not in other ranks' files")
    slices = [read_values(file, [index.entries[name]])[name] for file, index in of_stage]
    arrays = [array for array in slices if isinstance(array, np.ndarray)]
    if len(arrays) < len(slices) or len({array.dtype for array in arrays}) > 1:
        raise CatalogError(f"parameter {name!r}: is not a tensor, or of different dtypes on different ranks")
    return merge_slices(arrays, stage.layouts[name], f"parameter {name!r}")


def _shard(whole: np.ndarray, name: str, layouts: Mapping[str, ParameterLayout], rank: int) -> np.ndarray:
    if name not in layouts:
        raise CatalogError(f"'predict_strategy' has no parameter {name!r}")
    try:
        box = layouts[name].shard_grid(whole.ndim).box_of(rank % layouts[name].device_count, whole.shape)
    except LayoutError as error:
        raise LayoutError(f"'predict_strategy': parameter {name!r}: {error}") from None
    # the ellipsis makes an array of what would be a scalar; a view would keep the whole in memory
    index: tuple[Any, ...] = (*box.as_index(), ...)
    part: np.ndarray = whole[index]
    return part.copy()
