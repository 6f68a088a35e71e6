"""Content of files in the tests of storages, and the names that they have."""

import random

from reshard.core.storage.urls import Location

CONTENT = random.Random(1).randbytes(100_000)


def names_in(folder: Location) -> list[str]:
    """All files below a directory, whatever wrote them."""
    return sorted(str(path).removeprefix(folder.path + "/") for path in folder.fs.find(folder.path))
