"""Finds and aborts uploads that were begun, and neither completed nor aborted: by a process that was killed."""

from collections.abc import Iterable, Sequence

from reshard.core.storage.store import AbandonedUpload
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location


def abandoned_uploads(directory: Location) -> Sequence[AbandonedUpload]:
    """Return the abandoned uploads of files in a directory, or of a file.

    Raises:
        StorageError: the uploads cannot be listed.
    """
    return requested(directory, "list unfinished uploads of it", lambda: directory.store.abandoned(directory.path))


def abort_upload(location: Location, upload: AbandonedUpload) -> None:
    """Abort an abandoned upload of a file; the storage removes its parts.

    Raises:
        StorageError: it cannot be aborted.
    """
    requested(location, "give up its upload", lambda: location.store.abort(upload))


def abort_uploads(directory: Location, files: Iterable[Location]) -> int:
    """Abort the abandoned uploads of files in a directory; return their number.

    Raises:
        StorageError: the uploads cannot be listed or aborted.
    """
    paths = {file.path for file in files}
    found = [upload for upload in abandoned_uploads(directory) if upload.path in paths]
    for upload in found:
        abort_upload(Location(directory.store, upload.path), upload)
    return len(found)
