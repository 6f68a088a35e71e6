"""Strategies beside a checkpoint of ranks, where MindSpore's and MindFormers' trainings leave them.

    CHECKPOINT/../strategy/ckpt_strategy_rank_0.ckpt      of every rank, of the job that was started last
    CHECKPOINT/strategy/ckpt_strategy_rank_0.ckpt         the same, where a job saves all below its checkpoint
    …/ckpt_strategy*, …/*_ckpt_strategy*                  directories and files in either: merged_ckpt_strategy.ckpt

Source: MindFormers 2.0.0, tools/ckpt_transform/transform_checkpoint.py; MindSpore 2.10, merge_pipeline_strategys.
"""

from collections.abc import Iterator

from reshard.core.errors import InputError, StorageError
from reshard.core.files.file_names import rank_in
from reshard.core.layouts.place import Item, directory_at, list_items
from reshard.core.layouts.ranks.mindformers import CHECKPOINT_FOLDERS
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.transfers import each_at
from reshard.core.storage.urls import Location

_DIRECTORY = "strategy"
_PART = "ckpt_strategy"
_EXTENSIONS = (".ckpt", ".json")
_MAX_NEIGHBORS = 64
"""Directories around a strategy that are looked into, each by a listing."""


def strategies_beside(checkpoint: Location, inside: tuple[str, ...]) -> tuple[Location, ...]:
    """Return what is named as strategies are, in a checkpoint's directory and in the one around it.

    `inside` are the other paths in the checkpoint; those of folders end in a slash. One listing is made.

    Raises:
        StorageError: a transient failure.
    """
    own = (path for path in inside if "/" not in path.removesuffix("/"))
    in_it = [checkpoint.child(path.removesuffix("/")) for path in own if _is_strategy(path)]
    return *in_it, *_around(checkpoint)


def neighbors_of(checkpoint: Location, strategy: Location) -> list[Location]:
    """Return other checkpoints of several ranks beside a checkpoint whose strategy lies around it: it may be theirs.

    What MindFormers saves of one training, and what reshard converted, are no others.

    Raises:
        InputError: there are too many directories to look into.
        StorageError: a directory cannot be listed.
    """
    if strategy.parent.path != checkpoint.parent.path:
        return []
    own = {checkpoint.path, strategy.path}
    others = [
        item.location
        for item in list_items(checkpoint.parent)
        if item.kind == "directory" and item.location.path not in own and not _are_of_one_training(checkpoint, item)
    ]
    if len(others) > _MAX_NEIGHBORS:
        raise InputError(f"{checkpoint.parent}: has {len(others)} other directories, too many to look for checkpoints")
    return [
        other for other, is_one in zip(others, each_at(checkpoint.store, _has_ranks, others), strict=True) if is_one
    ]


def _are_of_one_training(checkpoint: Location, item: Item) -> bool:
    return checkpoint.name in CHECKPOINT_FOLDERS and item.name in CHECKPOINT_FOLDERS


def _has_ranks(directory: Location) -> bool:
    place = directory_at(directory)
    if STATE_DIRECTORY in place.names:
        return False
    names = [file.name for file in place.checkpoint_files if not _is_strategy(file.name.name)]
    return len(place.rank_folders) > 1 or len({rank_in(name.prefix) for name in names} - {None}) > 1


def _around(checkpoint: Location) -> Iterator[Location]:
    parent = checkpoint.parent
    if parent.path == checkpoint.path or not (parent.store.has_paths or parent.path.strip("/")):
        return
    try:
        items = list_items(parent)
    except StorageError as error:
        if error.transient:
            raise
        return  # who may read a directory may not be allowed to list the one around it
    for item in items:
        name = f"{item.name}/" if item.kind == "directory" else item.name
        if item.kind in ("file", "directory") and item.location.path != checkpoint.path and _is_strategy(name):
            yield item.location


def _is_strategy(path: str) -> bool:
    """True for the path of a file or a folder that is named as strategies are."""
    name = path.removesuffix("/")
    if path.endswith("/"):
        return name == _DIRECTORY or _PART in name
    return _PART in name and name.endswith(_EXTENSIONS)
