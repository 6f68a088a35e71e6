"""The files that a conversion may remove from its working directories; any other file there is refused by name.

A target is built in a directory beside it, named after the target. A link to a checkpoint, or a checkpoint, may already
have that name. So before the first write or removal there, every entry must be a file that conversions write, or a
directory of such files, and none a link.

Other runs begin, publish and clean up at any moment. So what is refused was seen by a single look at the disk, or was
still there at the end.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from msgspec import field

from reshard.core.errors import TargetError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.atomic_rename import is_leftover, is_temporary
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.leases.local_lease import GATE_NAME
from reshard.core.storage.publishing import RANK_FOLDER, STATE_DIRECTORY, IsOwn, foreign_names
from reshard.core.storage.urls import Location

_MAX_LISTED = 5
_CHECKPOINT_FILE = re.compile(r".+\.(ckpt|safetensors|pt)", re.DOTALL)


class Listing(Record):
    """The names allowed in a directory.

    Attributes:
        is_file: predicate of the paths that files may have, and folders, if they end in a slash.
        folders: patterns of directory names, each with its listing.
    """

    is_file: Callable[[str], bool]
    folders: Mapping[re.Pattern[str], "Listing"] = field(default_factory=dict)

    def of_folder(self, name: str) -> "Listing | None":
        """Return the listing of a directory; None if none of this name is allowed."""
        return next((listing for pattern, listing in self.folders.items() if pattern.fullmatch(name)), None)


_BUILT_THERE = "Its directory is where a target is built, and files there may be removed"
_RANK_LISTING = Listing(lambda name: _CHECKPOINT_FILE.fullmatch(name) is not None)


def check_working(directory: Location, state: Listing, is_own: IsOwn) -> None:
    """Check that a local working directory, if it exists, holds only files that conversions write.

    Args:
        directory: the directory in which a target is built.
        state: the listing of its state directory.
        is_own: predicate of the names that files may have in the directory itself.

    Raises:
        TargetError: the directory is a link or a file, or holds a foreign entry, which the message names.
        StorageError: the directory cannot be read.
    """
    with mapped_errors(directory, "list it"):
        _check_directory(directory.path)
        _check_entries(directory.path, _target_listing(state, is_own), _BUILT_THERE)
        # a killed worker may leave an unfinished file here after the directory was published
        file, state_path = _any_file(directory.path), directory.child(STATE_DIRECTORY).path
        if file is not None and not os.path.lexists(state_path) and os.path.lexists(file):
            raise TargetError(
                f"{directory}: holds checkpoint files, but no {STATE_DIRECTORY} of a conversion that would have "
                "written them there. A target is built there: move it away"
            )


def check_gate(directory: Location) -> None:
    """Check that a local directory, if it exists, holds only the file that runs lock in it.

    Raises:
        TargetError: the directory is a link or a file, or holds a foreign entry, which the message names.
        StorageError: the directory cannot be read.
    """
    with mapped_errors(directory, "list it"):
        _check_directory(directory.path)
        _check_entries(directory.path, Listing(GATE_NAME.__eq__), "Its directory is a lock of runs, to be removed")


def check_replaced(directory: Location, is_own: IsOwn) -> None:
    """Check that a local directory, if it exists, can only be a replaced target that was not yet removed.

    Raises:
        TargetError: the directory holds foreign files, or is a link.
        StorageError: the directory cannot be read.
    """
    with mapped_errors(directory, "look at it"):
        _check_directory(directory.path)
    foreign = [name for name in foreign_names(directory, is_own) if not is_temporary(name)]
    if foreign:
        raise TargetError(
            f"{directory}: holds foreign files ({listed(foreign, _MAX_LISTED)}). A replaced target is "
            "moved there and removed: move them away"
        )


def check_replaced_files(directory: Location, state: Listing, is_own: IsOwn) -> None:
    """Check that a replaced local target, if it exists, holds only files that conversions write, at any depth.

    Raises:
        TargetError: it holds a foreign entry, which the message names.
        StorageError: the directory cannot be read.
    """
    with mapped_errors(directory, "list it"):
        _check_entries(
            directory.path, _target_listing(state, is_own), "Its directory is a replaced target, to be removed"
        )


def _target_listing(state: Listing, is_own: IsOwn) -> Listing:
    return Listing(is_own, {RANK_FOLDER: _RANK_LISTING, re.compile(re.escape(STATE_DIRECTORY)): state})


def check_unlinked(directory: Location, names: Listing, is_own: IsOwn) -> None:
    """Check that no directory of a finished local target is a link: repairs would write through it.

    Raises:
        TargetError: a directory is a link.
        StorageError: the target cannot be read.
    """
    with mapped_errors(directory, "list it"):
        for entry in _entries(directory.path):
            state = names if entry.name == STATE_DIRECTORY else None
            if entry.is_symlink() and (state or RANK_FOLDER.fullmatch(entry.name)):
                raise _link(entry.path)
            for inner in _entries(entry.path) if state else []:
                if inner.is_symlink() and state and state.of_folder(inner.name):
                    raise _link(inner.path)
            _check_own_folder(entry, "", is_own)


def _check_own_folder(entry: os.DirEntry[str], prefix: str, is_own: IsOwn) -> None:
    path = f"{prefix}{entry.name}/"
    if not is_own(path):
        return
    if entry.is_symlink():
        raise _link(entry.path)
    for inner in _entries(entry.path) if entry.is_dir() else ():
        _check_own_folder(inner, path, is_own)


def _check_directory(path: str) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise _link(path)
        if not stat.S_ISDIR(mode):
            raise TargetError(
                f"{path}: is not a directory, but has the name of one that a conversion makes: move it away"
            )


def _check_entries(path: str, listing: Listing, reason: str, prefix: str = "") -> None:
    for entry in _entries(path):
        inner = None if prefix else listing.of_folder(entry.name)
        name = prefix + entry.name
        if entry.is_symlink():
            raise _link(entry.path)
        if inner is not None and entry.is_dir(follow_symlinks=False):
            _check_entries(entry.path, inner, reason)
        elif entry.is_dir(follow_symlinks=False) and listing.is_file(f"{name}/"):
            _check_entries(entry.path, listing, reason, f"{name}/")
        elif not entry.is_file(follow_symlinks=False) or not (listing.is_file(name) or is_leftover(entry.name)):
            if not os.path.lexists(entry.path):  # removed just now by the run that wrote it
                continue
            raise TargetError(f"{entry.path}: is not a file that conversions write. {reason}: move it away")


def _any_file(path: str) -> str | None:
    """The path of a complete checkpoint file in a directory or its rank folders; None without one."""
    for directory, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != STATE_DIRECTORY]
        for name in names:
            if not is_leftover(name):
                return os.path.join(directory, name)
    return None


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    # another run may remove or publish it at any moment
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        yield from entries


def _link(path: str) -> TargetError:
    return TargetError(
        f"{path}: is a link to {os.readlink(path)}. Conversions neither write nor remove anything through links: "
        "remove the link"
    )
