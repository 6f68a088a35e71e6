"""A place that may hold a checkpoint, listed once: a file, a directory, or a pattern with `{rank}`."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property

from reshard.core.errors import CatalogError
from reshard.core.files.file_names import CheckpointName, parse_name
from reshard.core.files.model import CheckpointFormat
from reshard.core.files.stage_files import group_stage_files
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import list_folder, looked_into
from reshard.core.storage.patterns import RANK_FIELD, matched_rank
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from reshard.core.storage.store import Entry
from reshard.core.storage.urls import Location, parse_url

RANK_FOLDER = f"rank_{RANK_FIELD}"


class FoundFile(Record):
    """A checkpoint file: its parsed name and its location."""

    name: CheckpointName
    location: Location


class Item(Record):
    """One entry of a directory; `kind` is "file", "directory" or another of fsspec's types."""

    location: Location
    kind: str

    @property
    def name(self) -> str:
        """Its name in the directory."""
        return self.location.name


class PlaceKind(Enum):
    """What a place is."""

    FILE = auto()
    DIRECTORY = auto()
    PATTERN = auto()


class Place(Record, dict=True):
    """A file, a directory or a pattern; `items` are a directory's, ordered by name."""

    location: Location
    kind: PlaceKind
    items: tuple[Item, ...] = ()

    @property
    def names(self) -> list[str]:
        """All names in the directory."""
        return [item.name for item in self.items]

    @cached_property
    def rank_folders(self) -> Mapping[int, Item]:
        """Rank -> its folder, `rank_3`."""
        found = ((matched_rank(RANK_FOLDER, item.name), item) for item in self.items if item.kind == "directory")
        return {rank: item for rank, item in found if rank is not None}

    @cached_property
    def checkpoint_files(self) -> tuple[FoundFile, ...]:
        """The files that may hold parameters, by name."""
        return split_files(self.items)[0]


def look_at(url: str) -> Place:
    """List the place at a URL.

    Raises:
        CatalogError: it is neither a file nor a directory.
        StorageError: nothing is there, or the storage does not answer.
        InputError: the URL is invalid.
    """
    location = parse_url(url)
    if RANK_FIELD in location.path:
        return Place(location, PlaceKind.PATTERN)
    kind, entries = looked_into(location, "read it")
    if kind == "file":
        return Place(location, PlaceKind.FILE)
    if kind != "directory":
        raise CatalogError(f"{location}: is neither a file nor a directory")
    return Place(location, PlaceKind.DIRECTORY, _items(location, entries))


def directory_at(location: Location) -> Place:
    """List a directory.

    Raises:
        StorageError: it does not exist, or cannot be listed.
    """
    return Place(location, PlaceKind.DIRECTORY, list_items(location))


def list_items(folder: Location) -> tuple[Item, ...]:
    """Return the entries of a directory, ordered by name; links are followed."""
    return _items(folder, list_folder(folder))


def split_files(items: Sequence[Item]) -> tuple[tuple[FoundFile, ...], list[Item]]:
    """Separate checkpoint files from the rest; the parts of stages of one directory are the file that they form."""
    files: list[FoundFile] = []
    rest: list[Item] = []
    for item in items:
        name = parse_name(item.name) if item.kind == "file" else None
        if name is None:
            rest.append(item)
        else:
            files.append(FoundFile(name, item.location))
    return _with_stage_files_joined(files), rest


def whole_file(location: Location) -> FoundFile:
    """Return a file of an index or of metadata, which say all that others' names say."""
    extension = f".{CheckpointFormat.SAFETENSORS}"
    stem = location.name.removesuffix(extension)
    return FoundFile(CheckpointName(location.name, stem, None, CheckpointFormat.SAFETENSORS), location)


def relative_path(root: Location, item: Item) -> str:
    """Return the path of an item below a directory; that of a folder ends in a slash."""
    path = item.location.path[len(root.path) :].lstrip("/")
    return f"{path}/" if item.kind == "directory" else path


def lacks_manifest(directory: Location, names: Iterable[str]) -> bool:
    """True for a directory with these names that has reshard's records, but no manifest: an unfinished conversion."""
    if STATE_DIRECTORY not in names:
        return False
    return not any(item.name == MANIFEST_NAME for item in list_items(directory.child(STATE_DIRECTORY)))


def _items(folder: Location, entries: Iterable[Entry]) -> tuple[Item, ...]:
    items = [_item(folder.child(entry.name), entry.kind) for entry in entries]
    return tuple(sorted(items, key=lambda item: item.name))


def _item(location: Location, kind: str) -> Item:
    if kind in ("file", "directory"):
        return Item(location, kind)
    try:
        # a listing does not follow links
        return Item(location, location.store.stat(location.path).kind)
    except OSError:
        # a dangling link
        return Item(location, kind)


def _with_stage_files_joined(files: Sequence[FoundFile]) -> tuple[FoundFile, ...]:
    """Replace stage files of one folder by the file that they form."""
    if not files:
        return ()
    folder = files[0].location.parent
    return tuple(FoundFile(name, folder.child(name.name)) for name in group_stage_files(file.name for file in files))
