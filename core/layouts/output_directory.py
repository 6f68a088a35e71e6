"""Directories that MindFormers' trainings write into, with the former layout of checkpoints.

    OUTPUT/checkpoint/rank_0/llama_rank_0-1_40.ckpt, meta.json                    all parameters; the last step saved
    OUTPUT/checkpoint_network/rank_0/llama_rank_0-network-1_40.ckpt               the network's alone
    OUTPUT/checkpoint_trainable/rank_0/llama_rank_0-trainable_params-1_40.ckpt    those that are trained
    OUTPUT/transformed_checkpoint/NAME/rank_0/checkpoint_0.ckpt                   what was loaded, converted
    OUTPUT/unified_checkpoint/part0.safetensors, param_name_map.json              what was loaded, in whole tensors
    OUTPUT/strategy/ckpt_strategy_rank_0.ckpt                                     of the job that was started last

Source: MindFormers 2.0.0, core/callback/callback.py, tools/resume_ckpt.py, tools/ckpt_transform/transform_checkpoint.py
and utils/load_checkpoint_utils.py. With Checkpoint 2.0, OUTPUT/checkpoint holds the iterations.
"""

from collections.abc import Sequence

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.file_names import Step, parse_name
from reshard.core.layouts.checkpoint2.names import METADATA_NAME, parse_iteration, parse_tensor_file
from reshard.core.layouts.unified.names import is_index_name
from reshard.core.runtime.metadata import load_json
from reshard.core.storage.listing import kind_of, names_in, unless_missing
from reshard.core.storage.patterns import matched_rank
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

SAVED_STEP_NAME = "meta.json"
"""In a rank's folder: the last step that the rank has saved completely."""
_CHECKPOINTS = {
    "checkpoint": "all that training saved",
    "checkpoint_network": "the network's parameters alone",
    "checkpoint_trainable": "the trained parameters alone",
    "transformed_checkpoint": "what training loaded, converted",
    "unified_checkpoint": "what training loaded, in whole tensors",
}
_STRATEGIES = "strategy"
_RANK_FOLDER = "rank_{rank}"
_FAILED = "transform_failed_rank_"
_MAX_BYTES = 1 << 16


def find_output_checkpoint(root: Location, names: Sequence[str]) -> Location | None:
    """Return the only checkpoint in a directory of outputs with these names; None if it is not such a directory.

    Raises:
        CatalogError: it has several checkpoints, or MindFormers could not convert the one that it has.
        StorageError: a directory cannot be listed.
    """
    if _holds_checkpoint(names):
        return None
    found = {folder: _checkpoints_in(root.child(folder), folder) for folder in _CHECKPOINTS if folder in names}
    locations = [location for each in found.values() for location in each]
    if len(locations) > 1:
        there = [f"{location} ({_CHECKPOINTS[folder]})" for folder, each in found.items() for location in each]
        raise CatalogError("\n  ".join([f"{root}: has several checkpoints; name the one that is meant:", *there]))
    return locations[0] if locations else None


def strategies_beside(checkpoint: Location) -> Location | None:
    """Return the directory of strategy files that training left beside a checkpoint; None if there is none."""
    place = checkpoint.parent.child(_STRATEGIES)
    return place if checkpoint.name in _CHECKPOINTS and kind_of(place) == "directory" else None


def read_saved_step(folder: Location) -> Step | None:
    """Return the last step that a rank has saved, by its meta.json; None if it has none, or one of another kind.

    Raises:
        StorageError: it cannot be read.
    """
    location = folder.child(SAVED_STEP_NAME)
    try:
        data = unless_missing(lambda: read_small_file(location, _MAX_BYTES))
        document = None if data is None else load_json(data, location)
    except (CheckpointError, ValueError, RecursionError):
        return None
    match document:
        case {"last_epoch": int(epoch), "last_step": int(step)} if epoch >= 0 and step >= 0:
            return Step(epoch, step)
    return None


def _checkpoints_in(folder: Location, name: str) -> list[Location]:
    names = _names_in(folder)
    if _holds_checkpoint(names):
        return [folder]
    if name != "transformed_checkpoint":
        return []
    found = []
    for child in names:
        inside = _names_in(folder.child(child))
        failed = [each for each in inside if each.startswith(_FAILED)]
        if failed:
            raise CatalogError(f"{folder.child(child)}: has {failed[0]}: MindFormers could not convert it")
        if _holds_checkpoint(inside):
            found.append(folder.child(child))
    return found


def _names_in(folder: Location) -> list[str]:
    """Return the names in a directory; none if it is something else."""
    return names_in(folder) if kind_of(folder) == "directory" else []


def _holds_checkpoint(names: Sequence[str]) -> bool:
    return any(
        matched_rank(_RANK_FOLDER, name) is not None
        or parse_name(name) is not None
        or parse_iteration(name) is not None
        or parse_tensor_file(name) is not None
        or is_index_name(name)
        or name == METADATA_NAME
        for name in names
    )
