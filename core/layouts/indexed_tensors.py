"""Files of whole tensors with an index, which is compared with them; they count as ranks, by name."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import CatalogError, raise_problems
from reshard.core.layouts.place import Place, lacks_manifest, relative_path, whole_file
from reshard.core.layouts.weight_maps import OTHERS_NAME
from reshard.core.layouts.whole_tensors import FoundWholeTensors
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.links import check_links
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location


class WeightIndex(Record):
    """An index: its location, and the file of each tensor."""

    location: Location
    files: Mapping[str, str]


class FoundIndexed(FoundWholeTensors):
    """Files of whole tensors that were found, and their index; None without one."""

    index: WeightIndex | None

    @property
    def index_name(self) -> str | None:
        """The name of the index."""
        return self.index.location.name if self.index else None

    def index_notes(self, is_weights: Callable[[str], bool]) -> tuple[str, ...]:
        """Return what its user should know of the index, and of files of weights beside those that it lists."""
        notes = []
        if self.index is None and len(self.files) > 1:
            notes.append(f"there is no index: its {len(self.files)} files are complete by the numbers in their names")
        beside = [name for name in self.ignored if is_weights(name)]
        if beside:
            notes.append(f"beside the files of the checkpoint, and not in its index, so ignored: {listed(beside, 6)}")
        return tuple(notes)

    @classmethod
    def of(cls, place: Place, names: Iterable[str], index: WeightIndex | None) -> Self:
        """Return the files of these names that are in a directory."""
        root, wanted = place.location, frozenset(names)
        there = sorted(
            (item for item in place.items if item.name in wanted and item.kind == "file"),
            key=lambda item: file_order(item.name),
        )
        documents = [index.location] if index else []
        check_links(root, [*(item.location for item in there), *documents])
        known = {STATE_DIRECTORY, *(item.name for item in there), *(document.name for document in documents)}
        return cls(
            str(root),
            {number: (whole_file(item.location),) for number, item in enumerate(there)},
            index,
            ignored=tuple(relative_path(root, item) for item in place.items if item.name not in known),
            unfinished=lacks_manifest(root, place.names),
        )


def only_index(place: Place, is_index: Callable[[str], bool]) -> Location | None:
    """Return the index of a directory, which has at most one; None if it has none.

    Raises:
        CatalogError: it has several.
    """
    indexes = [item.location for item in place.items if is_index(item.name) and item.kind == "file"]
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise CatalogError(f"{place.location}: has several indexes, {names}: name the one that is meant ({indexes[0]})")
    return indexes[0] if indexes else None


def check_no_single(place: Place, index: WeightIndex, single: str) -> None:
    """Refuse an index if the file `single` beside it, which it does not list, may be meant instead."""
    if single not in index.files.values() and single in place.names:
        raise CatalogError(
            f"{place.location}: has {single}, and beside it {index.location.name}, which does not list it: it is "
            "unclear which is the checkpoint. Remove the other one"
        )


def file_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Sort key of files: numbers compare by value, and parameters that no strategy covers come last."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return name == OTHERS_NAME, [(int(number or 0), text) for number, text in parts]


def names_outside(records: Mapping[int, CatalogRecord]) -> tuple[str, ...]:
    """Return the parameters that no strategy covers, as far as files show it: MindSpore's separate ones, and texts."""
    return tuple(
        name
        for record in records.values()
        for name, entry in record.index.entries.items()
        if entry.text is not None or _file_name(record) == OTHERS_NAME
    )


def check_index(url: str, index: WeightIndex | None, records: Mapping[int, CatalogRecord]) -> tuple[str, ...]:
    """Compare an index with its files, and return sentences for the user."""
    owners: dict[str, list[str]] = {}
    tensors = set()
    for record in records.values():
        for name, entry in record.index.entries.items():
            owners.setdefault(name, []).append(_file_name(record))
            if entry.text is None and _file_name(record) != OTHERS_NAME:
                tensors.add(name)
    problems = [f"parameter {name!r} is in {' and in '.join(files)}" for name, files in owners.items() if files[1:]]
    if index is not None:
        problems += _differences(index, owners, {_file_name(record) for record in records.values()})
    raise_problems(CatalogError, f"{index.location if index else url}: does not match the files beside it:", problems)
    unnamed = sorted(tensors - index.files.keys()) if index else []
    if index is None or not unnamed:
        return ()
    return (f"in its files, but not in {index.location.name}, used anyway: {listed(unnamed, 6)}",)


def _differences(index: WeightIndex, owners: Mapping[str, list[str]], there: set[str]) -> list[str]:
    absent: dict[str, list[str]] = {}
    problems = []
    for name, file in index.files.items():
        if file not in there:
            absent.setdefault(file, []).append(name)
        elif file not in owners.get(name, ()):
            elsewhere = f"; it is in {owners[name][0]}" if name in owners else ""
            problems.append(f"parameter {name!r} is not in {file}, where the index places it{elsewhere}")
    missing = [f"{file} is missing, where the index places {listed(names, 3)}" for file, names in absent.items()]
    return missing + problems


def _file_name(record: CatalogRecord) -> str:
    return record.location.rpartition("/")[2]
