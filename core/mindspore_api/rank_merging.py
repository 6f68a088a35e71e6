"""Fills a network from the `.ckpt` files of all ranks, resharded for one rank."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from reshard.core.checkpoint.shared_bytes import check_bytes_apart
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.files.numpy_values import Value
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.mindspore_api.chosen_entries import with_chosen_entries
from reshard.core.mindspore_api.failures import reading
from reshard.core.mindspore_api.file_writing import read_values
from reshard.core.mindspore_api.networks import Network, fill_network, names_in
from reshard.core.mindspore_api.paths import optional_strategy
from reshard.core.mindspore_api.planning import catalog_given
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import build_plan
from reshard.core.plan.stage_shards import names_in_order
from reshard.core.runtime.keys import Key, Keys, keys_in_force
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import kind_of
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.model import StageStrategy, Strategy
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
    """Fill a network from the `.ckpt` files of all ranks of a strategy: resharded by `layouts` for `rank`, or whole."""
    locations = _checked_files(files)
    strategy = optional_strategy("train_strategy_filename", strategy_file)
    if strategy is None:
        raise ValueError("'train_strategy_filename' is needed: there is no network that would know it")
    if len(locations) != len(strategy.ranks):
        raise ValueError(f"{strategy.origin}: is for {len(strategy.ranks)} ranks, {len(locations)} files were given")
    with reading(), keys_in_force(Keys(source=key)):
        values = _values(names_in(network), dict(zip(strategy.ranks, locations, strict=True)), strategy, layouts, rank)
    filling = fill_network(network, values, strict)
    filling.warn_of_suffixes(stacklevel=3)
    if filling.not_filled:
        missing = listed(sorted(filling.not_filled))
        warnings.warn(
            f"in the network, but not in the training strategy or not in the files: {missing}",
            stacklevel=3,
        )


def _values(
    names: Collection[str],
    files: Mapping[int, Location],
    strategy: Strategy,
    layouts: Mapping[str, ParameterLayout] | None,
    rank: int,
) -> dict[str, Value]:
    """Read a network's parameters, as far as the strategy and the files have them."""
    catalog = catalog_given("'checkpoint_filenames'", files, takes_key=True)
    wanted = strategy.parameters.intersection(names)
    catalog = with_chosen_entries(catalog, lambda name: name if name in wanted else None)
    there = names_in_order(catalog)
    if not there:
        return {}
    check_bytes_apart(catalog, strategy)
    target = None if layouts is None else _predicted(there, layouts)
    plan = build_plan(PlanInputs(catalog, strategy, target, CheckpointFormat.CKPT, layout=RankFolders()))
    return read_values(plan, rank % len(plan.target_ranks))


def _predicted(names: Sequence[str], layouts: Mapping[str, ParameterLayout]) -> Strategy:
    """The strategy by which a network is sharded; a layout for fewer devices than others is repeated."""
    missing = [name for name in names if name not in layouts]
    if missing:
        raise CatalogError(f"'predict_strategy' has no parameter {missing[0]!r}")
    devices = max(layouts[name].device_count for name in names)
    repeated = {}
    for name in names:
        layout = layouts[name]
        copies = devices // layout.device_count
        repeated[name] = replace(layout, device_matrix=(copies, *layout.device_matrix))
    return Strategy((StageStrategy(0, repeated),), "'predict_strategy'")


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
