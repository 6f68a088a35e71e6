"""Compares the index of a unified checkpoint with its files, which hold whole tensors and count as ranks, by name."""

import re
from collections.abc import Mapping

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.errors import CatalogError, raise_problems
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.wording import listed
from reshard.core.storage.unified_names import OTHERS_NAME
from reshard.core.storage.urls import Location


@frozen
class WeightIndex:
    """An index: its location, and the file of each tensor."""

    location: Location
    files: Mapping[str, str]


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
