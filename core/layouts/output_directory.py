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

from reshard.core.errors import CatalogError
from reshard.core.layouts.ranks.mindformers import CHECKPOINT_FOLDERS
from reshard.core.layouts.registry import source_layouts
from reshard.core.storage.listing import kind_of, names_in
from reshard.core.storage.urls import Location

_FAILED = "transform_failed_rank_"


def find_output_checkpoint(root: Location, names: Sequence[str]) -> Location | None:
    """Return the only checkpoint in a directory of outputs with these names; None if it is not such a directory.

    Raises:
        CatalogError: it has several checkpoints, or MindFormers could not convert the one that it has.
        StorageError: a directory cannot be listed.
    """
    if _holds_checkpoint(names):
        return None
    found = {folder: _checkpoints_in(root.child(folder), folder) for folder in CHECKPOINT_FOLDERS if folder in names}
    locations = [location for each in found.values() for location in each]
    if len(locations) > 1:
        there = [f"{location} ({CHECKPOINT_FOLDERS[folder]})" for folder, each in found.items() for location in each]
        raise CatalogError("\n  ".join([f"{root}: has several checkpoints; name the one that is meant:", *there]))
    return locations[0] if locations else None


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
    return any(layout.holds(names) for layout in source_layouts())
