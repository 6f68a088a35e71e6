"""Rank folders of a checkpoint, and the choice of a file in each by the rules of MindSpore's functions."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress

from msgspec.structs import replace

from reshard.core.errors import CatalogError, StorageError
from reshard.core.files.file_names import Step, group_prefixes, parse_name
from reshard.core.files.model import CheckpointFormat
from reshard.core.files.stage_files import group_stage_files
from reshard.core.layouts.foreign import check_not_foreign
from reshard.core.layouts.place import FoundFile
from reshard.core.layouts.ranks.checkpoint import FoundRanks
from reshard.core.layouts.ranks.rank_files import RankShape
from reshard.core.layouts.ranks.source import find_file
from reshard.core.mindspore_api.loading import check_plain
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.patterns import spelled_for
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location, parse_url

_RANK_FOLDER = re.compile(r"rank_([0-9]{1,18})")
_NUMBERS = re.compile(r"[0-9]+")


def survey_ranks(directory: str) -> FoundRanks:
    """Survey a directory's rank folders, whose numbers may have leading zeros, or a single file."""
    if not os.path.isdir(directory):
        return find_file(parse_url(os.path.abspath(directory)))
    root = parse_url(os.path.abspath(directory))
    with mapped_errors(root, "list it"):
        return _survey_folders(root, directory)


def _survey_folders(root: Location, directory: str) -> FoundRanks:
    folders: dict[int, str] = {}
    names = sorted(os.listdir(root.path))
    for name in names:
        match = _RANK_FOLDER.fullmatch(name)
        if match is None or not os.path.isdir(os.path.join(root.path, name)):
            continue
        rank = int(match[1])
        if rank in folders:
            raise CatalogError(
                f"{directory}: {folders[rank]} and {name} are both rank {rank}'s folder: remove the one that is not"
            )
        folders[rank] = name
    if not folders:
        check_not_foreign(root, names)
    state = os.path.join(root.path, STATE_DIRECTORY)
    return FoundRanks(
        str(root),
        {rank: _files_in(root.child(folders[rank])) for rank in sorted(folders)},
        RankShape.RANK_FOLDERS,
        names_files=True,  # MindSpore does not skip files saved on an exception
        unfinished=os.path.isdir(state) and not os.path.exists(os.path.join(state, MANIFEST_NAME)),
    )


def with_last_files(found: FoundRanks, ranks: Collection[int]) -> tuple[FoundRanks, str]:
    """The survey with one file for each of `ranks`, and a warning if a rank has several.

    Among prefixes and steps that all of them have, the last file by name is chosen, as MindSpore documents; of
    `.safetensors` files the one of the highest numbers, as MindSpore does.
    """
    files = {rank: found.files[rank] for rank in ranks if found.files.get(rank)}
    if all(len(each) == 1 for each in files.values()):
        return found, ""
    by_kind = _by_kind(files)
    common = set.intersection(*(set(each) for each in by_kind.values()))
    several = min(rank for rank, each in files.items() if len(each) > 1)
    names = listed([file.name.name for file in files[several]], 6)
    named = f"rank_{several} has {len(files[several])} checkpoint files ({names})"
    if not common:
        raise CatalogError(
            f"{found.url}: {named}, and no step and prefix is on all of the ranks that are needed: keep in each rank's "
            "folder the file that is meant"
        )
    chosen = max(common, key=lambda kind: _order(by_kind[several][kind]))
    other = [rank for rank, each in files.items() if max(each, key=_order) != by_kind[rank][chosen]]
    why = (
        f"the last by name that all ranks have, not the last of {rank_names(other, 3)}" if other else "the last by name"
    )
    note = f"{found.url}: {named}; {by_kind[several][chosen].name.name} is taken, {why}"
    return replace(found, files={**found.files, **{rank: (each[chosen],) for rank, each in by_kind.items()}}), note


def check_not_encrypted(locations: Iterable[Location], *, takes_key: bool = False) -> None:
    """Raise a clearer error than the one of reading if a file is encrypted; `takes_key`: the caller accepts a key."""
    for location in locations:
        with suppress(StorageError), closing(open_source(location)) as file:
            check_plain(file, takes_key=takes_key)


def _files_in(folder: Location) -> tuple[FoundFile, ...]:
    names = [entry.name for entry in os.scandir(folder.path) if entry.is_file()]
    parsed = [name for each in sorted(names) if (name := parse_name(each)) is not None]
    return tuple(FoundFile(name, folder.child(name.name)) for name in group_stage_files(parsed))


class _Kind(Record):
    """What files of one save have in common: prefix, with `{rank}` for the rank, and step."""

    prefix: str
    step: Step | None


def _by_kind(files: Mapping[int, Collection[FoundFile]]) -> dict[int, dict[_Kind, FoundFile]]:
    """The files of each rank by kind."""
    spellings = group_prefixes({rank: {file.name.prefix for file in each} for rank, each in files.items()})
    spelled = {(rank, spelled_for(spelling, rank)): spelling for spelling, ranks in spellings.items() for rank in ranks}
    return {
        rank: {_Kind(spelled[rank, file.name.prefix], file.name.step): file for file in each}
        for rank, each in files.items()
    }


def _order(file: FoundFile) -> tuple[list[int], str]:
    """Sort key of a rank's files; the last one is taken."""
    if file.name.format is not CheckpointFormat.SAFETENSORS:
        return [], file.name.name
    numbers = _NUMBERS.findall(f"{file.location.parent.name}/{file.name.name}")
    return [int(number) for number in numbers[-2:]], file.name.name
