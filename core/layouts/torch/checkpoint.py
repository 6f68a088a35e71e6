"""Opens the files of a checkpoint: which tensors each holds, and where, from its headers alone."""

from collections.abc import Hashable, Sequence
from contextlib import closing
from functools import partial

from reshard.core.errors import InputError
from reshard.core.files.remote_index.indexing import workers_on
from reshard.core.files.torch_file import EVERYTHING, read_torch_file
from reshard.core.layouts.cataloging import joined_errors
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile
from reshard.core.layouts.torch.state_dict import find_state_dict
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location
from reshard.core.text.options import source_option, spelled

_MAX_LISTED = 8


class OpenedFile(Record):
    """A file after its headers were read, and notes for the user."""

    file: ShardFile
    notes: tuple[str, ...]


def open_files(origin: str, locations: Sequence[Location], root: str, workers: int) -> list[OpenedFile]:
    """Read the headers of files.

    Args:
        origin: the checkpoint, for messages.
        locations: the files.
        root: the keys, joined by dots, that lead to the state dict in each; empty if each file is one.
        workers: files read at a time.

    Raises:
        InputError: files are damaged, or hold something else than a state dict.
        StorageError: a transient failure of the storage.
    """
    with workers_on(locations, workers) as threads:
        outcomes = threads.outcomes(partial(_open, root=root), locations)
    errors = [outcome for outcome in outcomes if isinstance(outcome, InputError)]
    if errors:
        raise joined_errors(origin, errors, len(locations))
    return [outcome for outcome in outcomes if isinstance(outcome, OpenedFile)]


def _open(location: Location, root: str) -> OpenedFile:
    with closing(open_source(location)) as file:
        tree = read_torch_file(file, inert=EVERYTHING).root
        found = find_state_dict(tree, root, str(location))
        shards = tuple(PlacedShard.whole(name, stored) for name, stored in found.tensors.items())
        opened = ShardFile(location.name, str(location), file.size_bytes, file.version, shards)
    notes = []
    if found.beside:
        chosen = spelled(source_option("root", root))
        notes.append(f"left out of {location.name}, beside {chosen}: {listed(found.beside, _MAX_LISTED)}")
    if found.others:
        notes.append(f"left out of {location.name}, as they are not tensors: {listed(found.others, _MAX_LISTED)}")
    notes += [
        f"{location.name} has one tensor of several names, which is written under each: {listed(names, _MAX_LISTED)}"
        for names in _tied(shards)
    ]
    return OpenedFile(opened, tuple(notes))


def _tied(shards: Sequence[PlacedShard]) -> list[list[str]]:
    """The names of each tensor that has several."""
    names: dict[Hashable, list[str]] = {}
    for each in shards:
        stored = each.stored
        if 0 not in stored.shape:
            names.setdefault((stored.extent, stored.strided, stored.shape, stored.dtype), []).append(each.name)
    return [same for same in names.values() if len(same) > 1]
