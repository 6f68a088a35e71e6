"""Content of files in the tests of storages, and the names that they have."""

import random

from fsspec.implementations.memory import MemoryFileSystem

from reshard.core.storage.urls import Location

CONTENT = random.Random(1).randbytes(100_000)


def names_in(folder: Location) -> list[str]:
    """All files below a directory, whatever wrote them."""
    return sorted(entry.path.removeprefix(folder.path + "/") for entry in folder.store.find(folder.path))


def contents(location: Location) -> bytes:
    return location.store.read_beginning(location.path, 2**20)


def forget_memory() -> None:
    """Removes all files and directories of `memory://`."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
