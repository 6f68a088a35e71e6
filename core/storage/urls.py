"""URLs of files and directories, on any storage that fsspec knows; a plain path is a local one."""

import os
import posixpath
import re

from reshard.core.errors import InputError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import NameText
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.named_options import options_for
from reshard.core.storage.store import Store
from reshard.core.storage.stores import open_store


class Location(Record):
    """A place on a storage: the `store`, and the `path` in it, without a trailing slash."""

    store: Store
    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    @property
    def parent(self) -> "Location":
        """The directory that contains it."""
        return Location(self.store, posixpath.dirname(self.path))

    def child(self, *parts: str) -> "Location":
        """A place below this one."""
        return Location(self.store, posixpath.join(self.path, *parts))

    def __str__(self) -> str:
        """The URL, as `parse_url` reads it; local ones are plain paths."""
        return NameText(self.store.url(self.path))

    def __format__(self, format_spec: str) -> str:
        """The URL for messages: printable, on one line."""
        return format(str(self), format_spec)


def name_in_messages(name: str) -> Location:
    """Return a place for what is at none, such as bytes in memory."""
    return Location(LOCAL_DISK, name)


_ONE_SLASH = re.compile(r"(file|local|s3a?|obs|gcs?|gs|az|abfss?|adl|hdfs|https?|memory):(?!//|:)")
"""The beginning of a path on this machine by which a URL is meant."""


def parse_url(url: str) -> Location:
    """Parse a URL or a local path.

    Raises:
        InputError: it is empty, a URL without its slashes, or carries credentials, its protocol is unknown or needs a
            package, or the storage's options do not open it.
    """
    if not url.strip():
        raise InputError("an empty path or URL was given")
    if found := _ONE_SLASH.match(url):
        # the rest may hold credentials
        raise InputError(
            f"{found[0]}…: is a path, but looks like a URL: write {found[0]}//… for a URL, ./{found[0]}… for a path"
        )
    if "://" in url:
        store, path = open_store(url, options_for(url))
    else:
        store, path = LOCAL_DISK, os.path.expanduser(url)
    if store.has_paths:
        try:
            path = os.path.realpath(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path!r}: cannot be opened: {error}") from error
    return Location(store, path.rstrip("/") or "/")
