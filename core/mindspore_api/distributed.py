"""`load_distributed_checkpoint`: the slices that ranks hold, from whole parameters or from other ranks' slices."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.mindspore_api.arguments import (
    DEFAULT_MODE,
    check_format,
    check_key,
    check_type,
    given_rank,
    key_of,
)
from reshard.core.mindspore_api.failures import writing
from reshard.core.mindspore_api.file_writing import PlannedFile, read_values, write_files
from reshard.core.mindspore_api.layouts import strategy_of
from reshard.core.mindspore_api.networks import Network, checked_network, fill_network
from reshard.core.mindspore_api.paths import checked_directory
from reshard.core.mindspore_api.rank_merging import checked_layouts, fill_from_ranks
from reshard.core.mindspore_api.unified import open_unified, plan_ranks, sharded_names
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import listed
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy

_NEVER_UNIFIED = "accu_grads"
"""Prefix of parameters that `unified_safetensors` leaves out."""


def load_distributed_checkpoint(
    network: Network | None,
    checkpoint_filenames: Sequence[str] | None = None,
    predict_strategy: Any = None,
    train_strategy_filename: str | None = None,
    strict_load: bool = False,
    dec_key: bytes | None = None,
    dec_mode: str = DEFAULT_MODE,
    format: str = "ckpt",
    unified_safetensors_dir: str | None = None,
    dst_safetensors_dir: str | None = None,
    rank_id: int | None = None,
    output_format: str = "safetensors",
    name_map: Mapping[str, str] | None = None,
    max_process_num: int = 64,
    return_param_dict: bool = False,
) -> Any:
    """Write ranks' slices into `dst_safetensors_dir/rank_{rank}/net.{output_format}`, or fill a network with one's.

    Args:
        network: arrays by name, to fill with this rank's slices; None to write files.
        checkpoint_filenames: for format `ckpt`, the files of all ranks in their order.
        predict_strategy: the ranks' layouts; None for a single rank with whole parameters. For `.safetensors`, a
            strategy file or the result of `build_searched_strategy`; for `.ckpt`, lists by name: device matrix, tensor
            map, param_split_shape, field.
        train_strategy_filename: for format `ckpt`, the strategy of those files.
        strict_load: match full names only, and refuse values of another dtype than their array.
        dec_key: the key of encrypted files.
        dec_mode: their encryption.
        format: `ckpt`, or `safetensors` for a directory of whole parameters.
        unified_safetensors_dir: that directory, as `unified_safetensors` writes it.
        dst_safetensors_dir: target directory.
        rank_id: the rank to write, None for all; or the rank of the network, None for the environment's.
        output_format: `safetensors` or `ckpt`.
        name_map: name of a parameter in the strategy -> its name in the files.
        max_process_num: maximum number of files written at a time.
        return_param_dict: return the slices, and leave `network` alone.

    Returns:
        True; for a directory with a network: the names in the network without a value, and the names of unused values;
        or the slices by name.

    Raises:
        TypeError: `network` is not a dict of arrays, or another argument has a wrong type.
        ValueError: arguments contradict each other; files or strategies are missing, unreadable, or do not fit.
        NotADirectoryError: `dst_safetensors_dir` is a file.
        RuntimeError: a value does not fit its array of the network.
        OSError: a file cannot be written.
    """
    check_format("format", format)
    check_format("output_format", output_format)
    check_key("dec", dec_key, dec_mode)
    _check_types(unified_safetensors_dir, dst_safetensors_dir, rank_id, name_map, max_process_num)
    if format == "ckpt":
        network = checked_network(network)
        key = key_of("dec_key", dec_key, dec_mode)
        layouts = checked_layouts(predict_strategy)
        rank = _rank_of_network(rank_id, max((layout.device_count for layout in (layouts or {}).values()), default=1))
        fill_from_ranks(network, checkpoint_filenames, layouts, rank, train_strategy_filename, strict_load, key)
        return True
    _check_none_is_of_ckpt(
        checkpoint_filenames=checkpoint_filenames,
        train_strategy_filename=train_strategy_filename,
        dec_key=dec_key,
        strict_load=strict_load or None,
        dec_mode=None if dec_mode == DEFAULT_MODE else dec_mode,
    )
    if unified_safetensors_dir is None:
        raise ValueError("'unified_safetensors_dir' is needed, 'format' is 'safetensors'")
    if network is None and dst_safetensors_dir is None:
        raise ValueError("'dst_safetensors_dir' is needed where no network is filled")
    if network is not None:
        checked_network(network)
    strategy = strategy_of("predict_strategy", predict_strategy)
    with writing():
        unified = open_unified(parse_url(unified_safetensors_dir), name_map or {})
        _check_matching(sharded_names(unified), strategy)
        if network is None:
            plan = plan_ranks(unified, strategy, CheckpointFormat(output_format))
            _write_ranks(plan, rank_id, strategy, str(dst_safetensors_dir), max_process_num)
            return True
        rank = _rank_of_network(rank_id, len(strategy.ranks) if strategy else 1)
        # .ckpt holds whatever can be loaded
        values = read_values(plan_ranks(unified, strategy, CheckpointFormat.CKPT), _rank_of_plan(rank, strategy))
    if return_param_dict:
        return values
    filling = fill_network(network, values, strict=False)
    filling.warn_of_suffixes(stacklevel=2)
    return filling.not_filled, filling.unused


def _check_none_is_of_ckpt(**given: object) -> None:
    """Raise ValueError if an argument was given that is for `.ckpt` files only."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name!r} is for .ckpt files only, 'format' is 'safetensors'")


def _check_types(unified: object, target: object, rank: object, names: object, most: object) -> None:
    check_type("unified_safetensors_dir", unified, str, optional=True)
    check_type("dst_safetensors_dir", target, str, optional=True)
    check_type("rank_id", rank, int, optional=True)
    if names is not None and not (isinstance(names, Mapping) and all(isinstance(each, str) for each in names.values())):
        raise TypeError(f"'name_map' has to be a dict of names, not {names!r}")
    check_type("max_process_num", most, int)


def _rank_of_network(given: int | None, count: int) -> int:
    """The rank, of `count`, whose slices fill a network."""
    rank = given_rank(given)
    if rank is None and count > 1:
        _warn(f"neither 'rank_id' nor the environment's RANK_ID says which of {count} ranks this is: rank 0 is assumed")
    return rank or 0


def _rank_of_plan(rank: int, strategy: Strategy | None) -> int:
    """Return a rank's number in its plan: without a strategy, every rank gets what the plan's only one gets."""
    if strategy is None:
        return 0
    ranks = strategy.ranks
    if rank not in ranks:
        raise CatalogError(
            f"{strategy.origin}: is for ranks {ranks.start} to {ranks.stop - 1}, there is no rank {rank}"
        )
    return rank


def _check_matching(there: frozenset[str], strategy: Strategy | None) -> None:
    """Warn of parameters that only the files have, or only the strategy; raise CatalogError if they share none."""
    if strategy is None:
        return
    if not there & strategy.parameters:
        raise CatalogError(f"{strategy.origin}: has none of the parameters that the files hold: another model's?")
    missing = sorted(name for name in strategy.parameters - there if not name.startswith(_NEVER_UNIFIED))
    if missing:
        _warn(f"{strategy.origin}: has parameters that the files lack, they are left out: {listed(missing)}")
    unused = sorted(there - strategy.parameters)
    if unused:
        _warn(f"{strategy.origin}: lacks parameters that the files have, they are left out: {listed(unused)}")


def _write_ranks(plan: ConversionPlan, only: int | None, strategy: Strategy | None, directory: str, most: int) -> None:
    """Write the files of all ranks, or of one only."""
    files = [
        PlannedFile(plan, _rank_of_plan(rank, strategy), f"rank_{rank}/net.{plan.inputs.format}")
        for rank in (plan.target_ranks if only is None else [only])
    ]
    root = parse_url(directory)
    if root.store.has_paths:
        root = parse_url(checked_directory("dst_safetensors_dir", directory))
        with mapped_errors(root, "make the directory"):
            os.makedirs(root.path, exist_ok=True)  # only the ranks' folders are for their owner alone, as in MindSpore
    # more threads do not speed up copying
    write_files(files, root, max(1, min(most, 2 * (os.cpu_count() or 1))))


def _warn(message: str) -> None:
    # at the call of load_distributed_checkpoint, three levels up
    warnings.warn(message, stacklevel=4)
