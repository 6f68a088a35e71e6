"""Links in a directory that somebody else may have made.

Files are copied, or read, because such a directory has a file of that name, or a document in it names one. A link in
their place could lead to any file on this machine, whose content would then be published. So links may lead only to
files in the directory itself or, as in a cache of the Hugging Face Hub, from a snapshot to the blobs beside it:

models--org--name/snapshots/REVISION/config.json -> ../../blobs/HASH
"""

import os
from collections.abc import Iterable, Iterator

from reshard.core.errors import InputError
from reshard.core.storage.joined import parts_of
from reshard.core.storage.urls import Location

_SNAPSHOTS, _BLOBS = "snapshots", "blobs"


def check_links(directory: Location, files: Iterable[Location]) -> None:
    """Check that no file of a local directory is a link that leads out of it, or is reached through one.

    Raises:
        InputError: one is; the message names it, and where it leads.
    """
    if not directory.store.has_paths:
        return
    roots = [os.path.join(root, "") for root in _allowed_roots(os.path.realpath(directory.path))]
    for file in files:
        for part in parts_of(file) or (file,):
            real = os.path.realpath(part.path)
            if not any(real.startswith(root) for root in roots):
                raise InputError(
                    f"{part}: is a link to {Location(directory.store, real)}, outside {directory}. Such links are not "
                    "followed: put a copy in its place if the file is meant"
                )


def _allowed_roots(directory: str) -> Iterator[str]:
    """The directory itself, and the blobs of the cache if it is a snapshot or lies in one."""
    yield directory
    parent, name = os.path.split(directory)
    while name:
        if os.path.basename(parent) == _SNAPSHOTS:
            yield os.path.join(os.path.dirname(parent), _BLOBS)
        parent, name = os.path.split(parent)
