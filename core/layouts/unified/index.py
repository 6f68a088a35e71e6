"""Compares the index of a unified checkpoint with its files, which hold whole tensors and count as ranks, by name.

Without an index, files that number themselves, `model-00001-of-00003.safetensors`, are one checkpoint if all are there.
"""

import re
from collections.abc import Collection, Mapping
from itertools import islice

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import CatalogError, raise_problems
from reshard.core.layouts.unified.names import INDEX_NAME, OTHERS_NAME, ShardName, parse_shard
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import Location

_MAX_LISTED = 6


class WeightIndex(Record):
    """An index: its location, and the file of each tensor."""

    location: Location
    files: Mapping[str, str]


def file_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Sort key of files: numbers compare by value, and parameters that no strategy covers come last."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return name == OTHERS_NAME, [(int(number or 0), text) for number, text in parts]


def are_numbered_shards(root: Location, names: Collection[str]) -> bool:
    """True if the checkpoint files of a directory without an index are one set that numbers itself, and is complete.

    Raises:
        CatalogError: some are of such a set, but files of it are missing, or there are others beside them.
    """
    shards = {name: shard for name in names if (shard := parse_shard(name)) is not None}
    if not shards:
        return False
    first = next(iter(shards.values()))
    of_set = {shard.number: name for name, shard in shards.items() if _is_of_set(shard, first)}
    strange = [name for name in names if name not in of_set.values()]
    if strange:
        one = next(iter(of_set.values()), first.name_of(first.number))
        raise CatalogError(
            f"{root}: has {one}, by its name one of {first.count} files, and beside it {listed(strange, _MAX_LISTED)}, "
            f"but no index that says which are the checkpoint ({INDEX_NAME}): get that as well, or remove the others"
        )
    if len(of_set) < first.count:
        numbers = (number for number in range(1, first.count + 1) if number not in of_set)  # a name may say billions
        lacking = ", ".join(map(first.name_of, islice(numbers, _MAX_LISTED)))
        more = first.count - len(of_set) - _MAX_LISTED
        raise CatalogError(
            f"{root}: has {len(of_set)} of {first.count} files that number themselves, and no index ({INDEX_NAME}); "
            f"missing: {lacking}{f' and {more} more' if more > 0 else ''}. Get them as well, or name the one file that "
            "is meant"
        )
    return True


def _is_of_set(shard: ShardName, first: ShardName) -> bool:
    return (shard.stem, shard.count_text) == (first.stem, first.count_text) and 1 <= shard.number <= shard.count


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
