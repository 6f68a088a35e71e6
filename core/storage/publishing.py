"""Publishes a directory of files at once.

On a local file system the files are written into a sibling directory, which a single rename gives the target's name
when all are complete: MindSpore knows no commit marker, so a reader must see all files or none. A target that is
replaced is moved aside first and removed last, so that at every moment one of the two is whole on disk.

Object stores cannot rename a directory. There the files are written in place, and the manifest, written last, makes
them a checkpoint; a former manifest is withdrawn before any of its files is replaced.
"""

import errno
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from reshard.core.errors import StorageError, TargetError
from reshard.core.runtime.wording import listed, size_text
from reshard.core.storage.atomic_rename import flush_to_disk, is_temporary, remove_abandoned
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.joined import parts_of
from reshard.core.storage.listing import find_files, list_folder, unless_missing
from reshard.core.storage.removal import remove_files
from reshard.core.storage.store import Entry
from reshard.core.storage.urls import Location

IsOwn = Callable[[str], bool]
"""Predicate of the paths that files may have that a conversion writes into the target's directory, outside of rank
folders; of folders with such files, if they end in a slash."""
PARTIAL_SUFFIX = ".reshard-partial"
REPLACED_SUFFIX = ".reshard-replaced"
RANK_FOLDER = re.compile(r"(mp_)?rank_[0-9]+(_[0-9]+)*")
"""Directory names in a checkpoint with a folder for each rank, by one number or several; others have no directories."""
STATE_DIRECTORY = ".reshard"
"""Directory in a target for everything that is not a checkpoint file."""
MANIFEST_NAME = "manifest.json"
"""Name of the commit marker in it: a target without it is not finished."""
SIGNATURE_NAME = "model.sig"
"""Name of the signature over all of a target's files, beside them; other programs look for it there."""
_MAX_LISTED = 5
REMOVING_NAME = "removing.json"
"""Name of a copy of the manifest that marks a conversion being removed, until all its files are gone."""
WITHDRAWN_NAME = "withdrawn"
"""Name of a file that marks a finished conversion whose manifest was withdrawn, to mend it or to replace it."""


def state_path(name: str) -> str:
    """Return the path, below a target, of what has this name in its state directory."""
    return f"{STATE_DIRECTORY}/{name}"


def is_built_beside(final: Location) -> bool:
    """True if a target is built beside its place and renamed; otherwise in its place, file by file."""
    return final.store.renames


def working_location(final: Location) -> Location:
    """Return the place where the files of a target are written."""
    return Location(final.store, final.path + PARTIAL_SUFFIX) if is_built_beside(final) else final


def replaced_location(final: Location) -> Location:
    """Return the place to which a replaced target is moved until it is removed."""
    return Location(final.store, final.path + REPLACED_SUFFIX)


def places_beside(final: Location) -> tuple[Location, ...]:
    """Return where a target is built, and where a replaced one is moved: nowhere if it is built in its place."""
    return (working_location(final), replaced_location(final)) if is_built_beside(final) else ()


def list_names(location: Location) -> list[str]:
    """Return the names in a directory, sorted; none if it does not exist.

    Rank folders on an object store without a file in any of them are left out: they were created in a console.

    Raises:
        TargetError: the location is a file.
        StorageError: the directory cannot be listed.
    """
    paths = {entry.path: entry.kind for entry in _entries(location)}
    if paths.pop(location.path, "directory") == "file":
        raise TargetError(f"{location}: is a file, the target must be a directory")
    names = sorted(posixpath.basename(path) for path in paths)
    folders = [name for name in names if RANK_FOLDER.fullmatch(name)]
    if location.store.has_paths or any(_entries(location.child(folder)) for folder in folders):
        return names
    return [name for name in names if name not in folders]


def _entries(location: Location) -> Sequence[Entry]:
    return unless_missing(lambda: list_folder(location)) or ()


def foreign_names(location: Location, is_own: IsOwn) -> list[str]:
    """Return the names in a directory that do not belong to a checkpoint, and the paths in folders that do."""
    names = list_names(location)
    folders = _own_folders(names, is_own)
    start = len(location.path.rstrip("/")) + 1
    inside = [file for folder in folders for file in find_files(location.child(folder))]
    return [
        *(
            name
            for name in names
            if not (RANK_FOLDER.fullmatch(name) or name == STATE_DIRECTORY or name in folders or is_own(name))
        ),
        *(file.path[start:] for file in inside if not (is_own(file.path[start:]) or is_temporary(file.name))),
    ]


def _own_folders(names: Iterable[str], is_own: IsOwn) -> list[str]:
    """Those of the names in a directory, rank folders apart, that are folders that conversions write files into."""
    return [name for name in names if is_own(f"{name}/")]


def remove_tree(location: Location) -> None:
    """Remove a directory with its content, if it exists."""
    if not location.store.has_paths:
        remove_files(find_files(location))
        return
    with mapped_errors(location, "remove it"):
        while os.path.isdir(location.path):
            # runs of one target that end at the same time remove it concurrently
            with suppress(FileNotFoundError):
                shutil.rmtree(location.path)


def other_files(directory: Location, known: Iterable[str], is_own: IsOwn) -> list[Location]:
    """Return a checkpoint's complete files, in rank folders or beside them, that are not among `known`.

    Those are paths below the directory.
    """
    known_locations = [directory.child(path) for path in known]
    known_paths = {file.path for location in known_locations for file in parts_of(location) or (location,)}
    start = len(directory.path.rstrip("/")) + 1
    return [
        file
        for file in find_files(directory)
        if (RANK_FOLDER.fullmatch(file.path[start:].partition("/")[0]) or is_own(file.path[start:]))
        and file.path not in known_paths
        and not (directory.store.has_paths and is_temporary(file.name))
    ]


def remove_others(working: Location, kept: Iterable[str], is_own: IsOwn) -> None:
    """Remove a checkpoint's files that are not among `kept` (paths below the directory), and empty folders."""
    remove_files(other_files(working, kept, is_own))
    remove_empty_folders(working, _rank_folders(working))
    for folder in _own_folders(list_names(working), is_own) if working.store.has_paths else ():
        inner = [path for path, _, _ in os.walk(working.child(folder).path, topdown=False)]
        remove_empty_folders(working, [Location(working.store, path) for path in inner])


def _rank_folders(directory: Location) -> Iterator[Location]:
    for name in list_names(directory):
        if RANK_FOLDER.fullmatch(name):
            yield directory.child(name)


def remove_empty_folders(directory: Location, folders: Iterable[Location]) -> None:
    """Remove those of some folders in a directory that are empty, one after another; object stores have none."""
    if not directory.store.has_paths:
        return
    with mapped_errors(directory, "remove empty folders in it"):
        for folder in folders:
            if os.path.isdir(folder.path) and not os.listdir(folder.path):
                os.rmdir(folder.path)


def remove_unfinished(directory: Location, wanted: Callable[[str], bool], unchanged_seconds: float = 0) -> None:
    """Remove unfinished files of killed writers as `remove_abandoned` does; object stores show none.

    Raises:
        OSError: one cannot be removed.
    """
    if directory.store.has_paths:
        remove_abandoned(directory.path, wanted, unchanged_seconds)


def temporary_files(directory: Location, is_own: IsOwn) -> list[Location]:
    """Return the files of a checkpoint, and of its state directory, that a killed run did not finish."""
    if not directory.store.has_paths:
        return []
    names = list_names(directory)
    folders = [name for name in names if RANK_FOLDER.fullmatch(name) or name == STATE_DIRECTORY or is_own(f"{name}/")]
    with mapped_errors(directory, "list its files"):
        paths = [directory.child(name).path for name in names] + [
            os.path.join(path, name)
            for folder in folders
            for path, _, files in os.walk(directory.child(folder).path)
            for name in files
        ]
        return [
            Location(directory.store, path)
            for path in paths
            if is_temporary(posixpath.basename(path)) and os.path.isfile(path) and not os.path.islink(path)
        ]


def publish(working: Location, final: Location, is_own: IsOwn) -> None:
    """Give finished files their final name; a replaced target is removed afterwards.

    What `is_own` names there may be removed with it.

    Raises:
        TargetError: the directory to replace holds foreign files, which would be removed with it.
        StorageError: a rename failed; the finished files are still at `working`.
    """
    if working.path == final.path:
        return
    foreign = foreign_names(final, is_own) if os.path.isdir(final.path) else []
    if foreign:
        raise TargetError(
            f"{final}: holds foreign files ({listed(foreign, _MAX_LISTED)}), and would be replaced. Move them "
            f"away; the same command then continues from {working}"
        )
    replaced = replaced_location(final)
    with mapped_errors(final, f"give it the finished files (they are whole in {working})"):
        for directory, _, _ in os.walk(working.path):
            flush_to_disk(directory)
        if os.path.isdir(final.path) and os.listdir(final.path):
            remove_tree(replaced)
            os.rename(final.path, replaced.path)
        os.rename(working.path, final.path)
        flush_to_disk(os.path.dirname(final.path))
    remove_tree(replaced)


def check_room(location: Location, needed_bytes: int) -> None:
    """Check that a local file system has room.

    Raises:
        StorageError: it has not; the same error as of a disk that fills up later.
    """
    free_bytes = free_room(location)
    if free_bytes is not None and free_bytes < needed_bytes:
        raise StorageError(f"{location}: {no_room_text(needed_bytes, free_bytes)}") from OSError(
            errno.ENOSPC, os.strerror(errno.ENOSPC)
        )


def free_room(location: Location) -> int | None:
    """Return the free bytes of the file system of a place; None for object stores, which tell nothing."""
    if not location.store.has_paths:
        return None
    existing = location.path
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    with mapped_errors(location, "look for room"):
        return shutil.disk_usage(existing).free


def no_room_text(needed_bytes: int, free_bytes: int) -> str:
    """Say that a file system has less room than is needed, in exact bytes if the sizes read the same."""
    needed, free = size_text(needed_bytes), size_text(free_bytes)
    if needed == free:
        needed, free = f"{needed_bytes:,} bytes", f"{free_bytes:,}"
    return f"has no room: {needed} are needed, {free} are free"
