"""What conversions leave in directories that are theirs to clear: all else there is somebody's, and is refused by name.

A target is put together in a directory beside it, whose name follows from the target's. Anything may have that name: a
link to a checkpoint, or a checkpoint. So before anything is written or removed there, every entry must be a file that
conversions write, or a directory of such files, and none a link.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from core.errors import TargetError
from core.storage.failures import mapped_errors
from core.storage.files import is_of_file_system, is_temporary
from core.storage.publishing import RANK_FOLDER, STATE_DIRECTORY, foreign_names
from core.storage.urls import Location
from core.unified_names import is_unified_name

_CHECKPOINT_FILE = re.compile(r".+\.(ckpt|safetensors)", re.DOTALL)


@dataclass(frozen=True)
class Listing:
    """What a directory may hold.

    Attributes:
        is_file: whether a file may have a name.
        folders: patterns of the names of its directories, and what these may hold.
    """

    is_file: Callable[[str], bool]
    folders: Mapping[re.Pattern[str], "Listing"] = field(default_factory=dict)

    def of_folder(self, name: str) -> "Listing | None":
        """What a directory of that name may hold; None if there may be none."""
        return next((listing for pattern, listing in self.folders.items() if pattern.fullmatch(name)), None)


_RANK_LISTING = Listing(lambda name: _CHECKPOINT_FILE.fullmatch(name) is not None)


def check_working(directory: Location, state: Listing) -> None:
    """Makes sure that a local directory, if it is there, holds what conversions write and nothing else.

    Args:
        directory: where a target is put together.
        state: what its state directory may hold.

    Raises:
        TargetError: it is a link or a file, or holds something else, which is named.
        StorageError: it cannot be read.
    """
    folders = {RANK_FOLDER: _RANK_LISTING, re.compile(re.escape(STATE_DIRECTORY)): state}
    with mapped_errors(directory, "list it"):
        _check_directory(directory.path)
        _check_entries(directory.path, Listing(is_unified_name, folders))
        # those that a killed worker has only begun may come after the directory was published
        if not os.path.lexists(directory.child(STATE_DIRECTORY).path) and _holds_files(directory.path):
            raise TargetError(
                f"{directory}: holds checkpoint files, but no {STATE_DIRECTORY} of a conversion that would have "
                "written them there. A target is put together there: move it away"
            )


def check_replaced(directory: Location) -> None:
    """Makes sure that a local directory, if it is there, can be what a target was before it was replaced.

    Raises:
        TargetError: it cannot.
        StorageError: it cannot be read.
    """
    _check_directory(directory.path)
    foreign = [name for name in foreign_names(directory) if not is_temporary(name)]
    if foreign:
        raise TargetError(
            f"{directory}: holds what is not a checkpoint's ({', '.join(foreign[:5])}). What a target replaces is "
            "moved there and removed: move that away"
        )


def check_unlinked(directory: Location, names: Listing) -> None:
    """Makes sure that a finished local target has no links in the place of its directories: it is mended there.

    Raises:
        TargetError: it has.
        StorageError: it cannot be read.
    """
    with mapped_errors(directory, "list it"):
        for entry in _entries(directory.path):
            state = names if entry.name == STATE_DIRECTORY else None
            if entry.is_symlink() and (state or RANK_FOLDER.fullmatch(entry.name)):
                raise _link(entry.path)
            for inner in _entries(entry.path) if state else []:
                if inner.is_symlink() and state and state.of_folder(inner.name):
                    raise _link(inner.path)


def _check_directory(path: str) -> None:
    if os.path.islink(path):
        raise _link(path)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise TargetError(f"{path}: is not a directory, but has the name of one that a conversion makes: move it away")


def _check_entries(path: str, listing: Listing) -> None:
    for entry in _entries(path):
        inner = listing.of_folder(entry.name)
        if entry.is_symlink():
            raise _link(entry.path)
        if inner is not None and entry.is_dir(follow_symlinks=False):
            _check_entries(entry.path, inner)
        elif not entry.is_file(follow_symlinks=False) or not _is_known(entry.name, listing):
            if not os.path.lexists(entry.path):  # removed in this moment, by the run that had written it
                continue
            raise TargetError(
                f"{entry.path}: is nothing that a conversion writes. A target is put together in the directory that it "
                "is in, and what is there may be removed: move it away"
            )


def _holds_files(path: str) -> bool:
    """Whether a directory, or one in it, holds whole checkpoint files."""
    names = (name for _, _, names in os.walk(path) for name in names)
    return any(not is_temporary(name) and not is_of_file_system(name) for name in names)


def _is_known(name: str, listing: Listing) -> bool:
    return listing.is_file(name) or is_temporary(name) or is_of_file_system(name)


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    # another run may remove it, or give it its final name, at any moment
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        yield from entries


def _link(path: str) -> TargetError:
    return TargetError(
        f"{path}: is a link to {os.readlink(path)}. Conversions neither write nor remove anything through links: "
        "remove the link"
    )
