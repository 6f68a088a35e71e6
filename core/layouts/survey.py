"""Lists which ranks a checkpoint has, and each one's files; opens no checkpoint file.

A checkpoint is named in one of nine ways: a directory with a folder per rank (`rank_3`), a directory with a file per
rank (`net_rank_3.ckpt`), a directory with checkpoint files (one rank), one checkpoint file (one rank), a pattern with
`{rank}`, if unified, its directory or index, if it is a Checkpoint 2.0, the directory of an iteration or of all, if
PyTorch's Distributed Checkpoint (DCP) wrote it, its directory, or the directory of all outputs of MindFormers. Only
indexes and metadata are read.
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

from reshard.core.errors import CatalogError
from reshard.core.files.file_names import CheckpointName, Step, group_prefixes, parse_name, rank_in
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.files.stage_files import group_stage_files
from reshard.core.layouts.checkpoint2.iterations import Iteration, find_iteration, iteration_in, joint_files
from reshard.core.layouts.checkpoint2.names import COMMON_NAME, METADATA_NAME
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint, dcp_in, find_dcp
from reshard.core.layouts.dcp.megatron import MEGATRON_NAMES
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.foreign import check_not_foreign, foreign_below, foreign_text
from reshard.core.layouts.output_directory import find_output_checkpoint
from reshard.core.layouts.unified.index import WeightIndex, are_numbered_shards, file_order
from reshard.core.layouts.unified.names import (
    MAP_NAME,
    OTHERS_NAME,
    SINGLE_NAME,
    is_index_name,
)
from reshard.core.layouts.unified.weight_maps import check_file_names, read_weight_map
from reshard.core.runtime.frozen import frozen
from reshard.core.storage.input_errors import storage_errors_as_input
from reshard.core.storage.links import check_links
from reshard.core.storage.listing import list_folder, looked_into
from reshard.core.storage.patterns import RANK_FIELD, matched_rank, spelled_for
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location, parse_url

ITERATION_NAMES = frozenset({METADATA_NAME, COMMON_NAME, STATE_DIRECTORY})
"""Names in an iteration's directory beside its files of tensors."""
_RANK_FOLDER = f"rank_{RANK_FIELD}"
_EXTENSIONS = " or ".join(f".{file_format}" for file_format in SELF_CONTAINED)


class CheckpointShape(StrEnum):
    """How a checkpoint was named."""

    FILE = "file"
    FOLDER = "folder"  # files without rank folders
    RANK_FOLDERS = "rank folders"
    RANK_FILES = "rank files"  # of several ranks in one folder, whose names say the ranks
    PATTERN = "pattern"
    UNIFIED = "unified"
    ITERATION = "Checkpoint 2.0"
    DCP = "DCP"


@frozen
class FoundFile:
    """A checkpoint file: its parsed name and its location."""

    name: CheckpointName
    location: Location


@frozen
class CheckpointSurvey:
    """The files of a checkpoint, complete or not.

    Attributes:
        url: the checkpoint, as it was named.
        files: rank -> its checkpoint files, by name; empty for a rank folder without any.
        ignored: other files and folders, as paths below the checkpoint; folders end in a slash.
        names_files: `url` names the files themselves, not their folders.
        unfinished: it is the target of an incomplete conversion.
        has_records: False if a listing of rank folders shows that none of reshard's records are beside them.
        index: index of a unified checkpoint, whose files count as ranks; None for a single file.
        iteration: the iteration of a Checkpoint 2.0; ranks that hold nothing have no files.
        dcp: the checkpoint of DCP, whose files count as ranks.
    """

    url: str
    shape: CheckpointShape
    files: Mapping[int, tuple[FoundFile, ...]]
    ignored: tuple[str, ...] = ()
    names_files: bool = False
    unfinished: bool = False
    has_records: bool = True
    index: WeightIndex | None = None
    iteration: Iteration | None = None
    dcp: DcpCheckpoint | None = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with checkpoint files, ascending."""
        return tuple(sorted(rank for rank, files in self.files.items() if files))

    @cached_property
    def formats(self) -> tuple[CheckpointFormat, ...]:
        """Formats of the files."""
        there = {file.name.format for files in self.files.values() for file in files}
        return tuple(file_format for file_format in CheckpointFormat if file_format in there)

    @cached_property
    def steps(self) -> Mapping[str, Mapping[Step | None, tuple[int, ...]]]:
        """Prefix -> step -> ranks that have it.

        A prefix that contains the rank has `{rank}` in its place. Steps ascend; None, for files without, comes first.
        """
        names = {rank: [file.name for file in self.files[rank]] for rank in self.ranks}
        groups = group_prefixes({rank: {name.prefix for name in ours} for rank, ours in names.items()})
        result: dict[str, Mapping[Step | None, tuple[int, ...]]] = {}
        for spelling, ranks in groups.items():
            owners: dict[Step | None, list[int]] = {}
            for rank in ranks:
                for step in {name.step for name in names[rank] if name.prefix == spelled_for(spelling, rank)}:
                    owners.setdefault(step, []).append(rank)
            ordered = sorted(owners, key=lambda step: (step is not None, step or Step(0, 0)))
            result[spelling] = {step: tuple(owners[step]) for step in ordered}
        return result


def survey(url: str, step: str = "") -> CheckpointSurvey:
    """List the files of a directory, a pattern with `{rank}`, or a checkpoint file.

    `step` chooses the iteration of a Checkpoint 2.0; by default its tracker does. Other checkpoints are listed whole.

    Raises:
        CatalogError: there is no checkpoint, or it cannot be read.
        StrategyError: the metadata of a Checkpoint 2.0 is damaged.
        StorageError: a transient failure of the storage.
        InputError: the URL is invalid.
    """
    location = parse_url(url)
    # this process may have listed it hours ago
    location.fs.invalidate_cache()
    with storage_errors_as_input(location):
        if RANK_FIELD in location.path:
            return _survey_pattern(location)
        kind, entries = looked_into(location, "read it")
        if kind not in ("file", "directory"):
            raise CatalogError(f"{location}: is neither a file nor a directory")
        return _survey_file(location, step) if kind == "file" else _survey_directory(location, entries, step)


def survey_iteration(iteration: Iteration) -> CheckpointSurvey:
    """List the files of an iteration."""
    known = {*ITERATION_NAMES, *(name for names in iteration.files.values() for name in names)}
    files = joint_files(iteration)
    documents = [iteration.location.child(name) for name in (METADATA_NAME, COMMON_NAME)]
    check_links(iteration.location, [*documents, *files.values()])
    return CheckpointSurvey(
        iteration.url,
        CheckpointShape.ITERATION,
        {rank: (_whole_file(location),) for rank, location in files.items()},
        ignored=tuple(name for name in iteration.names if name not in known),
        names_files=True,
        unfinished=_lacks_manifest(iteration.location, iteration.names),
        iteration=iteration,
    )


def survey_dcp(checkpoint: DcpCheckpoint) -> CheckpointSurvey:
    """List the files of a DCP checkpoint."""
    known = {DCP_METADATA_NAME, STATE_DIRECTORY, *MEGATRON_NAMES, *checkpoint.paths}
    named = [DCP_METADATA_NAME, *checkpoint.paths]
    check_links(checkpoint.location, [checkpoint.location.child(path) for path in named])
    return CheckpointSurvey(
        checkpoint.url,
        CheckpointShape.DCP,
        {rank: (_whole_file(checkpoint.location.child(part.path)),) for rank, part in enumerate(checkpoint.parts)},
        ignored=tuple(name for name in checkpoint.names if name not in known),
        names_files=True,
        unfinished=_lacks_manifest(checkpoint.location, checkpoint.names),
        dcp=checkpoint,
    )


@frozen
class _Item:
    """One entry of a folder; `kind` is "file", "directory" or another of fsspec's types."""

    location: Location
    kind: str


def _named_file(item: _Item) -> FoundFile:
    if item.kind != "file":
        raise CatalogError(f"{item.location}: is not a regular file")
    name = parse_name(item.location.name)
    if name is None:
        check_not_foreign(item.location, [item.location.name])
        raise CatalogError(f"{item.location}: not a checkpoint file: its name has to end in {_EXTENSIONS}")
    return FoundFile(name, item.location)


def _survey_file(location: Location, step: str) -> CheckpointSurvey:
    dcp = find_dcp(str(location), step) if location.name == DCP_METADATA_NAME else None
    if dcp is not None:
        return survey_dcp(dcp)
    iteration = find_iteration(str(location), step) if location.name == METADATA_NAME else None
    if iteration is not None:
        return survey_iteration(iteration)
    if is_index_name(location.name):
        return _survey_unified(location.parent, location, _list_folder(location.parent))
    files = {0: (_named_file(_Item(location, "file")),)}
    return CheckpointSurvey(str(location), CheckpointShape.FILE, files, names_files=True)


def _survey_directory(root: Location, entries: Iterable[Mapping[str, Any]], step: str) -> CheckpointSurvey:
    items = _items(root, entries)
    names = [item.location.name for item in items]
    if (dcp := dcp_in(root, names, step)) is not None:
        return survey_dcp(dcp)
    iteration = iteration_in(root, names, step)
    return _survey_files(root, items) if iteration is None else survey_iteration(iteration)


def _survey_files(root: Location, items: Sequence[_Item]) -> CheckpointSurvey:
    folders = {rank: item for rank, item in _match(items, _RANK_FOLDER, None) if item.kind == "directory"}
    if folders:
        files, ignored = _list_ranks(root, folders)
        rank_folders = {item.location.name for item in folders.values()}
        beside = [item for item in items if item.location.name not in rank_folders]
        shape = CheckpointShape.RANK_FOLDERS
    elif (index := _only_index(root, items)) is not None or _is_unified_alone(items):
        return _survey_unified(root, index, items)
    else:
        found, beside = _split(items)
        if not found:
            output = find_output_checkpoint(root, [item.location.name for item in items])
            if output is not None:
                return _survey_files(output, _list_folder(output))
            raise CatalogError(_without_checkpoint(root, items))
        if are_numbered_shards(root, [file.location.name for file in found]):
            return _survey_unified(root, None, items)
        files, ignored, shape = {0: found}, [], CheckpointShape.FOLDER
        of_ranks, others = _by_rank(found)
        if len(of_ranks) > 1:
            files, ignored, shape = of_ranks, [file.name.name for file in others], CheckpointShape.RANK_FILES
    ignored += [_relative(root, item) for item in beside if item.location.name != STATE_DIRECTORY]
    return CheckpointSurvey(
        str(root),
        shape,
        files,
        ignored=tuple(sorted(ignored)),
        unfinished=_is_unfinished(items),
        has_records=any(item.location.name == STATE_DIRECTORY for item in items),
    )


def _by_rank(found: Iterable[FoundFile]) -> tuple[dict[int, tuple[FoundFile, ...]], list[FoundFile]]:
    """Sort the files of one folder by the ranks in their names; also return those without."""
    of_ranks: dict[int, tuple[FoundFile, ...]] = {}
    others: list[FoundFile] = []
    for file in found:
        rank = rank_in(file.name.prefix)
        if rank is None:
            others.append(file)
        else:
            of_ranks[rank] = (*of_ranks.get(rank, ()), file)
    return dict(sorted(of_ranks.items())), others


def _without_checkpoint(root: Location, items: Sequence[_Item]) -> str:
    """Return the refusal of a directory without anything to read; it says so if another library wrote it."""
    if foreign := foreign_text(root, [item.location.name for item in items]):
        return foreign
    below = foreign_below([item.location for item in items if item.kind == "directory"])
    nothing = f"{root}: holds neither rank_N folders nor checkpoint files ({_EXTENSIONS})"
    return f"{nothing}; {below}" if below else nothing


def _only_index(root: Location, items: Sequence[_Item]) -> Location | None:
    """Return the index of a directory, which has at most one; None if it has none."""
    indexes = [item.location for item in items if is_index_name(item.location.name) and item.kind == "file"]
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise CatalogError(f"{root}: has several indexes, {names}: name the one that is meant ({indexes[0]})")
    return indexes[0] if indexes else None


def _is_unified_alone(items: Sequence[_Item]) -> bool:
    """True if the only checkpoint file has the name of a unified one that needs no index."""
    return [file.location.name for file in _split(items)[0]] == [SINGLE_NAME]


def _survey_unified(root: Location, index_location: Location | None, items: Sequence[_Item]) -> CheckpointSurvey:
    """List the files in an index and, beside MindSpore's, the file of parameters that no strategy covers.

    Without an index all checkpoint files count.
    """
    if index_location is None:
        index, wanted = None, {file.location.name for file in _split(items)[0]}
    else:
        index = WeightIndex(index_location, read_weight_map(index_location))
        check_file_names(index.files, index_location)
        wanted = {*index.files.values(), *([OTHERS_NAME] if index_location.name == MAP_NAME else [])}
        if SINGLE_NAME not in wanted and any(item.location.name == SINGLE_NAME for item in items):
            raise CatalogError(
                f"{root}: has {SINGLE_NAME}, and beside it {index_location.name}, which does not list it: it is "
                "unclear which is the checkpoint. Remove the other one"
            )
    there = [item for item in items if item.location.name in wanted and item.kind == "file"]
    there.sort(key=lambda item: file_order(item.location.name))
    check_links(root, [item.location for item in there] + ([index_location] if index_location else []))
    known = {
        STATE_DIRECTORY,
        *(item.location.name for item in there),
        *([index_location.name] if index_location else []),
    }
    return CheckpointSurvey(
        str(root),
        CheckpointShape.UNIFIED,
        {number: (_whole_file(item.location),) for number, item in enumerate(there)},
        ignored=tuple(_relative(root, item) for item in items if item.location.name not in known),
        names_files=True,
        unfinished=_is_unfinished(items),
        index=index,
    )


def _whole_file(location: Location) -> FoundFile:
    extension = f".{CheckpointFormat.SAFETENSORS}"
    stem = location.name.removesuffix(extension)
    return FoundFile(CheckpointName(location.name, stem, None, CheckpointFormat.SAFETENSORS), location)


def _survey_pattern(pattern: Location) -> CheckpointSurvey:
    parts = pattern.path.split("/")
    depth = next(position for position, part in enumerate(parts) if RANK_FIELD in part)
    root = Location(pattern.fs, "/".join(parts[:depth]) or "/")
    items = _list_folder(root)
    matches = _match(items, parts[depth], None)
    for part in parts[depth + 1 :]:
        folders = [(rank, item) for rank, item in matches if item.kind == "directory"]
        listings = at_once(_list_folder, [item.location for _, item in folders])
        matches = [
            match for (rank, _), listing in zip(folders, listings, strict=True) for match in _match(listing, part, rank)
        ]
    if not matches:
        raise CatalogError(f"{pattern}: nothing matches the pattern")
    rank_folders = {rank: item for rank, item in matches if item.kind == "directory"}
    if rank_folders:
        files, ignored = _list_ranks(root, rank_folders)
        ignored += [_relative(root, item) for _, item in matches if item.kind != "directory"]
    else:
        files, ignored = {rank: (_named_file(item),) for rank, item in matches}, []
    return CheckpointSurvey(
        str(pattern),
        CheckpointShape.PATTERN,
        dict(sorted(files.items())),
        ignored=tuple(sorted(ignored)),
        names_files=not rank_folders,
        unfinished=_is_unfinished(items),
    )


def _list_ranks(root: Location, folders: Mapping[int, _Item]) -> tuple[dict[int, tuple[FoundFile, ...]], list[str]]:
    """List each rank's files, and what else is in the folders."""
    files: dict[int, tuple[FoundFile, ...]] = {}
    ignored: list[str] = []
    ranks = sorted(folders)
    listings = at_once(_list_folder, [folders[rank].location for rank in ranks])
    for rank, listing in zip(ranks, listings, strict=True):
        files[rank], beside = _split(listing)
        ignored += [_relative(root, item) for item in beside]
    return files, ignored


def _list_folder(folder: Location) -> list[_Item]:
    return _items(folder, list_folder(folder))


def _items(folder: Location, entries: Iterable[Mapping[str, Any]]) -> list[_Item]:
    items = []
    for entry in entries:
        path = entry["name"].strip("/")
        # object stores may list a folder's own marker
        if path != folder.path.strip("/"):
            items.append(_item(folder.child(posixpath.basename(path)), entry["type"]))
    return sorted(items, key=lambda item: item.location.name)


def _item(location: Location, kind: str) -> _Item:
    if kind in ("file", "directory"):
        return _Item(location, kind)
    try:
        # a listing does not follow links
        return _Item(location, str(location.fs.info(location.path)["type"]))
    except OSError:
        # a dangling link
        return _Item(location, kind)


def _match(items: Sequence[_Item], part: str, rank: int | None) -> list[tuple[int, _Item]]:
    """Return the items that one component of a pattern matches, and each one's rank; `rank` if it is known already."""
    if rank is None:
        found = [(matched_rank(part, item.location.name), item) for item in items]
        return [(number, item) for number, item in found if number is not None]
    name = spelled_for(part, rank)
    return [(rank, item) for item in items if item.location.name == name]


def _split(items: Sequence[_Item]) -> tuple[tuple[FoundFile, ...], list[_Item]]:
    """Separate checkpoint files from the rest."""
    files: list[FoundFile] = []
    rest: list[_Item] = []
    for item in items:
        name = parse_name(item.location.name) if item.kind == "file" else None
        if name is None:
            rest.append(item)
        else:
            files.append(FoundFile(name, item.location))
    return _with_stage_files_joined(files), rest


def _with_stage_files_joined(files: Sequence[FoundFile]) -> tuple[FoundFile, ...]:
    """Replace stage files of one folder by the file that they form."""
    if not files:
        return ()
    folder = files[0].location.parent
    return tuple(FoundFile(name, folder.child(name.name)) for name in group_stage_files(file.name for file in files))


def _relative(root: Location, item: _Item) -> str:
    path = item.location.path[len(root.path) :].lstrip("/")
    return f"{path}/" if item.kind == "directory" else path


def _is_unfinished(items: Sequence[_Item]) -> bool:
    records = [item for item in items if item.location.name == STATE_DIRECTORY]
    return bool(records) and _lacks_manifest(records[0].location.parent, [STATE_DIRECTORY])


def _lacks_manifest(directory: Location, names: Sequence[str]) -> bool:
    """True for a directory with these names that has records, but no manifest."""
    if STATE_DIRECTORY not in names:
        return False
    return not any(item.location.name == MANIFEST_NAME for item in _list_folder(directory.child(STATE_DIRECTORY)))
