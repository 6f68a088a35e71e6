"""The local disk, described as fsspec describes filesystems.

Importing fsspec, with asyncio and ssl, takes as long as converting a small checkpoint.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from reshard.core.runtime.records import Record

Entry = dict[str, Any]
"""A file as fsspec describes it, as far as it is used here: `name` (a path), `type`, `size`, `islink`, `mtime`."""


class LocalDisk(Record):
    """fsspec's filesystem of the local disk, with its own methods for what conversions ask of it.

    They raise OSError if a path cannot be looked at.
    """

    storage_options: ClassVar[Mapping[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        from fsspec.implementations.local import LocalFileSystem

        return getattr(LocalFileSystem(), name)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: there is no cache."""

    def info(self, path: str) -> Entry:
        """Describe a file or directory; links are followed."""
        status = os.lstat(path)
        is_link = stat.S_ISLNK(status.st_mode)
        return _entry(path, os.stat(path) if is_link else status, is_link)

    def ls(self, path: str, detail: bool = True) -> list[Entry]:
        """Describe everything in a directory, or a file itself; links in a directory are not followed."""
        assert detail  # without, fsspec returns names
        own = self.info(path)
        return list(_listed(path)) if own["type"] == "directory" else [own]

    def find(self, path: str, detail: bool = True) -> dict[str, Entry]:
        """Describe all files below a directory, or a file itself, by path; nothing if it is missing."""
        assert detail  # without, fsspec returns names
        found: dict[str, Entry] = {}
        left = [path]
        while left:
            with suppress(FileNotFoundError, NotADirectoryError):  # removed meanwhile
                for entry in self.ls(left.pop()):
                    if entry["type"] == "directory":
                        left.append(entry["name"])
                    else:
                        found[entry["name"]] = entry
        return dict(sorted(found.items()))


LOCAL_DISK = LocalDisk()


def _listed(path: str) -> Iterator[Entry]:
    with os.scandir(path) as listing:
        for each in listing:
            with suppress(FileNotFoundError):  # removed meanwhile
                yield _entry(each.path, each.stat(follow_symlinks=False), each.is_symlink())


def _entry(path: str, status: os.stat_result, is_link: bool) -> Entry:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    return {"name": path, "type": kind, "size": status.st_size, "islink": is_link, "mtime": status.st_mtime}
