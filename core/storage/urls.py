"""URLs of files and directories, on any storage that fsspec knows; a plain path is a local one."""

import os
import posixpath
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from core.errors import InputError
from core.secrets import ADVICE, carries_credentials


@dataclass(frozen=True)
class Location:
    """A place on a storage: `fs` is its fsspec file system, `path` the path inside it, without a trailing slash."""

    fs: Any
    path: str

    @cached_property
    def is_local(self) -> bool:
        """Whether it is a path on this machine (or one that is mounted here)."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    @property
    def parent(self) -> "Location":
        """The directory that it is in."""
        return Location(self.fs, posixpath.dirname(self.path))

    def child(self, *parts: str) -> "Location":
        """A place below this one."""
        return Location(self.fs, posixpath.join(self.path, *parts))

    def __str__(self) -> str:
        """The URL, as a user would write it: local ones are plain paths."""
        return self.path if self.is_local else str(self.fs.unstrip_protocol(self.path))


def parse_url(url: str) -> Location:
    """The place that a URL or a local path names.

    Raises:
        InputError: it is empty, carries credentials, or its protocol is unknown or needs a package.
    """
    if not url.strip():
        raise InputError("an empty path or URL was given")
    if carries_credentials(url):
        raise InputError(ADVICE)
    try:
        # fsspec would take "::" in a plain path for a chain of storages
        fs, path = fsspec.url_to_fs(url) if "://" in url else (fsspec.filesystem("file"), os.path.expanduser(url))
        if isinstance(fs, LocalFileSystem):
            path = os.path.realpath(path)
    except Exception as error:  # the packages behind fsspec raise what they like about a URL that they cannot use
        raise InputError(f"{url!r}: cannot be opened: {error}") from error
    return Location(fs, path.rstrip("/") or "/")
