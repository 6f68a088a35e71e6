"""Recognizes a checkpoint of ranks, and lists which ranks it has, and each one's files.

It is named in one of five ways: a directory with a folder per rank (`rank_3`), a directory with a file per rank
(`net_rank_3.ckpt`), a directory with checkpoint files (one rank), one checkpoint file (one rank), or a pattern with
`{rank}`.
"""

from collections.abc import Iterable, Mapping, Sequence

from reshard.core.errors import CatalogError
from reshard.core.files.file_names import Step, parse_name, parse_step, rank_in
from reshard.core.files.model import SELF_CONTAINED
from reshard.core.layouts.foreign import check_not_foreign
from reshard.core.layouts.place import (
    RANK_FOLDER,
    FoundFile,
    Item,
    Place,
    PlaceKind,
    lacks_manifest,
    list_items,
    relative_path,
    split_files,
)
from reshard.core.layouts.ranks.checkpoint import FoundRanks
from reshard.core.layouts.ranks.rank_files import RankShape
from reshard.core.layouts.source_layout import SourceLayout
from reshard.core.storage.patterns import RANK_FIELD, matched_rank, spelled_for
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location

EXTENSIONS = " or ".join(f".{file_format}" for file_format in SELF_CONTAINED)


class RanksSource(SourceLayout):
    """MindSpore's checkpoints of ranks, as a source."""

    name = "ranks"
    is_self_described = False

    def recognize(self, place: Place, step: str) -> FoundRanks | None:
        """Return the files of all ranks and of all steps."""
        if place.kind is PlaceKind.PATTERN:
            return _find_matching(place.location)
        if place.kind is PlaceKind.FILE:
            return find_file(place.location)
        if place.rank_folders:
            return _in_rank_folders(place)
        return _in_one_folder(place) if place.checkpoint_files else None

    def holds(self, names: Sequence[str]) -> bool:
        """True for rank folders and checkpoint files."""
        return any(matched_rank(RANK_FOLDER, name) is not None or parse_name(name) is not None for name in names)

    def step_of(self, name: str) -> Step | None:
        """Return the step in `10_5`."""
        return parse_step(name)


SOURCE = RanksSource()


def find_file(location: Location) -> FoundRanks:
    """Return the checkpoint in one file, which holds everything; a CatalogError if it is not a checkpoint file."""
    files = {0: (_named_file(Item(location, "file")),)}
    return FoundRanks(str(location), files, RankShape.FILE, names_files=True)


def _in_rank_folders(place: Place) -> FoundRanks:
    files, ignored = _list_ranks(place.location, place.rank_folders)
    folders = {item.name for item in place.rank_folders.values()}
    beside = [item for item in place.items if item.name not in folders]
    return _found(place, RankShape.RANK_FOLDERS, files, [*ignored, *_paths(place, beside)])


def _in_one_folder(place: Place) -> FoundRanks:
    found, beside = split_files(place.items)
    of_ranks, others = _by_rank(found)
    if len(of_ranks) < 2:
        return _found(place, RankShape.FOLDER, {0: found}, _paths(place, beside))
    ignored = [*(file.name.name for file in others), *_paths(place, beside)]
    return _found(place, RankShape.RANK_FILES, of_ranks, ignored)


def _found(
    place: Place, shape: RankShape, files: Mapping[int, tuple[FoundFile, ...]], ignored: Iterable[str]
) -> FoundRanks:
    return FoundRanks(
        str(place.location),
        files,
        shape,
        ignored=tuple(sorted(ignored)),
        unfinished=lacks_manifest(place.location, place.names),
        lists_records=STATE_DIRECTORY in place.names,
    )


def _paths(place: Place, items: Iterable[Item]) -> list[str]:
    return [relative_path(place.location, item) for item in items if item.name != STATE_DIRECTORY]


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


def _find_matching(pattern: Location) -> FoundRanks:
    """List the files, or the folders of files, that a pattern matches."""
    parts = pattern.path.split("/")
    depth = next(position for position, part in enumerate(parts) if RANK_FIELD in part)
    root = Location(pattern.store, "/".join(parts[:depth]) or "/")
    items = list_items(root)
    matches = _match(items, parts[depth], None)
    for part in parts[depth + 1 :]:
        folders = [(rank, item) for rank, item in matches if item.kind == "directory"]
        listings = at_once(list_items, [item.location for _, item in folders])
        matches = [
            match for (rank, _), listing in zip(folders, listings, strict=True) for match in _match(listing, part, rank)
        ]
    if not matches:
        raise CatalogError(f"{pattern}: nothing matches the pattern")
    rank_folders = {rank: item for rank, item in matches if item.kind == "directory"}
    if rank_folders:
        files, ignored = _list_ranks(root, rank_folders)
        ignored += [relative_path(root, item) for _, item in matches if item.kind != "directory"]
    else:
        files, ignored = {rank: (_named_file(item),) for rank, item in matches}, []
    return FoundRanks(
        str(pattern),
        dict(sorted(files.items())),
        RankShape.PATTERN,
        ignored=tuple(sorted(ignored)),
        names_files=not rank_folders,
        unfinished=lacks_manifest(root, [item.name for item in items]),
    )


def _named_file(item: Item) -> FoundFile:
    if item.kind != "file":
        raise CatalogError(f"{item.location}: is not a regular file")
    name = parse_name(item.name)
    if name is None:
        check_not_foreign(item.location, [item.name])
        raise CatalogError(
            f"{item.location}: not a checkpoint file: its name has to end in {EXTENSIONS}. A checkpoint of other files "
            "is named by its directory"
        )
    return FoundFile(name, item.location)


def _list_ranks(root: Location, folders: Mapping[int, Item]) -> tuple[dict[int, tuple[FoundFile, ...]], list[str]]:
    """List each rank's files, and what else is in the folders."""
    files: dict[int, tuple[FoundFile, ...]] = {}
    ignored: list[str] = []
    ranks = sorted(folders)
    listings = at_once(list_items, [folders[rank].location for rank in ranks])
    for rank, listing in zip(ranks, listings, strict=True):
        files[rank], beside = split_files(listing)
        ignored += [relative_path(root, item) for item in beside]
    return files, ignored


def _match(items: Sequence[Item], part: str, rank: int | None) -> list[tuple[int, Item]]:
    """Return the items that one component of a pattern matches, and each one's rank; `rank` if it is known already."""
    if rank is None:
        found = [(matched_rank(part, item.name), item) for item in items]
        return [(number, item) for number, item in found if number is not None]
    name = spelled_for(part, rank)
    return [(rank, item) for item in items if item.name == name]
