"""A unified checkpoint as a source: whole tensors in files that an index tells of, and whether that index is right.

Its files count as ranks, by name; what its survey found is compared with what the files hold.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.errors import CatalogError
from reshard.core.runtime.wording import listed
from reshard.core.storage.unified_names import OTHERS_NAME
from reshard.core.storage.urls import Location

_MOST_PROBLEMS_TOLD = 20


@dataclass(frozen=True)
class WeightIndex:
    """An index: where it is, and which file it says that each tensor is in."""

    location: Location
    files: Mapping[str, str]


def file_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """By which files are sorted: numbers count as such, and what no strategy knows comes last."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return name == OTHERS_NAME, [(int(number or 0), text) for number, text in parts]


def names_outside(records: Mapping[int, CatalogRecord]) -> tuple[str, ...]:
    """What no strategy knows, as far as the files tell: what MindSpore has put apart, and texts."""
    return tuple(
        name
        for record in records.values()
        for name, entry in record.index.entries.items()
        if entry.text is not None or _file_name(record) == OTHERS_NAME
    )


def check_index(url: str, index: WeightIndex | None, records: Mapping[int, CatalogRecord]) -> tuple[str, ...]:
    """Compares an index with what its files hold, and returns what a user should know, in sentences."""
    holders: dict[str, list[str]] = {}
    tensors = set()
    for record in records.values():
        for name, entry in record.index.entries.items():
            holders.setdefault(name, []).append(_file_name(record))
            if entry.text is None and _file_name(record) != OTHERS_NAME:
                tensors.add(name)
    problems = [f"parameter {name!r} is in {' and in '.join(files)}" for name, files in holders.items() if files[1:]]
    if index is not None:
        problems += _differences(index, holders, {_file_name(record) for record in records.values()})
    if problems:
        told = problems[:_MOST_PROBLEMS_TOLD]
        more = [f"and {len(problems) - len(told)} more"] if len(problems) > len(told) else []
        where = index.location if index else url
        raise CatalogError("\n  - ".join([f"{where}: is not of the files beside it:", *told, *more]))
    unnamed = sorted(tensors - index.files.keys()) if index else []
    if index is None or not unnamed:
        return ()
    return (f"in its files, but not in {index.location.name}, and taken all the same: {listed(unnamed, 6)}",)


def _differences(index: WeightIndex, holders: Mapping[str, list[str]], there: set[str]) -> list[str]:
    absent: dict[str, list[str]] = {}
    problems = []
    for name, file in index.files.items():
        if file not in there:
            absent.setdefault(file, []).append(name)
        elif file not in holders.get(name, ()):
            elsewhere = f"; it is in {holders[name][0]}" if name in holders else ""
            problems.append(f"parameter {name!r} is not in {file}, where the index says that it is{elsewhere}")
    missing = [
        f"{file} is not there, where the index says that {listed(names, 3)} are" for file, names in absent.items()
    ]
    return missing + problems


def _file_name(record: CatalogRecord) -> str:
    return record.location.rpartition("/")[2]
