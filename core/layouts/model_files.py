"""The files of weights in a model's directory, as Hugging Face's loaders pick them: complete or not.

Opening a checkpoint refuses a directory whose files contradict each other. This takes what is there, to tell what a
loader would make of it.
"""

from collections.abc import Callable, Collection, Mapping

from reshard.core.files.model import TensorEntry
from reshard.core.layouts.numbered_shards import parse_shard
from reshard.core.layouts.place import Place
from reshard.core.layouts.weight_maps import WeightMap, check_file_names, read_index
from reshard.core.runtime.records import Record
from reshard.core.storage.links import check_links
from reshard.core.storage.urls import Location

_MAX_MISSING = 2**12
"""A file's name may say that there are billions."""

ReadEntries = Callable[[Location], Mapping[str, TensorEntry]]
"""Reads the entries of one file, from its headers."""


class ModelFileNames(Record):
    """How a layout calls the files of a model.

    Attributes:
        single: the only file of a model.
        index: the index of several.
        suffix: what the names of all files end with.
        is_weights: True for the name of a file of weights.
    """

    single: str
    index: str
    suffix: str
    is_weights: Callable[[str], bool]


class ModelFiles(Record):
    """The files of weights in a model's directory.

    Attributes:
        index: the index; None without one.
        weights: what the index says.
        files: the files that loaders read, by name.
        missing: names of files that are not there.
        beside: names of files of weights that are in no index, or beside the single file.
        lacks_index: several files, numbered by their names, have no index.
        has_both: a single file is beside an index that does not list it.
        read: reads a file's entries.
    """

    index: Location | None
    weights: WeightMap
    files: tuple[Location, ...]
    missing: tuple[str, ...]
    beside: tuple[str, ...]
    lacks_index: bool
    has_both: bool
    read: ReadEntries


def model_files(place: Place, names: ModelFileNames, read: ReadEntries) -> ModelFiles | None:
    """Return a directory's files of weights that have a layout's names; None if it has none.

    Raises:
        CatalogError: the index is not one, or names files elsewhere.
        StorageError: it cannot be read.
    """
    there = {item.name: item.location for item in place.items if item.kind == "file"}
    weights = [name for name in there if names.is_weights(name)]
    index = there.get(names.index)
    has_single = names.single in there
    if index is not None:
        check_links(place.location, [index])
        found = read_index(index)
        check_file_names(found.files, index, names.suffix)
    else:
        found = WeightMap({}, None)
    numbered = [] if index is not None or has_single else _numbered(weights)
    has_both = has_single and index is not None and names.single not in found.files.values()
    if has_single and (index is None or has_both):
        wanted: Collection[str] = [names.single]
    else:
        wanted = dict.fromkeys(found.files.values()) if index is not None else numbered
    if not wanted and index is None:
        return None
    files = tuple(there[name] for name in sorted(wanted) if name in there)
    check_links(place.location, files)
    return ModelFiles(
        index=None if has_both else index,
        weights=WeightMap({}, None) if has_both else found,
        files=files,
        missing=tuple(sorted(name for name in wanted if name not in there)),
        beside=tuple(sorted(name for name in weights if name not in wanted)),
        lacks_index=bool(numbered),
        has_both=has_both,
        read=read,
    )


def _numbered(weights: Collection[str]) -> list[str]:
    """The names of all files of the set that the first numbered one is of."""
    first = next((shard for name in sorted(weights) if (shard := parse_shard(name)) is not None), None)
    if first is None:
        return []
    return [first.name_of(number) for number in range(1, min(first.count, _MAX_MISSING) + 1)]
