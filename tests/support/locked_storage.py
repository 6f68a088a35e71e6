"""A storage in memory, `locked://`, that opens only with the right key among its storage options."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

KEY = "hunter2-hunter2"


class LockedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    protocol = "locked"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, key: str = "", **options: Any) -> None:
        if key != KEY:
            raise PermissionError("the key is wrong")
        super().__init__(**options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).replace("locked://", "memory://")))


@contextmanager
def locked_storage() -> Iterator[MemoryFileSystem]:
    """Makes `locked://` known; what is on it is gone afterwards."""
    fsspec.register_implementation("locked", LockedFileSystem, clobber=True)
    try:
        yield LockedFileSystem(key=KEY)
    finally:
        LockedFileSystem.store.clear()
        LockedFileSystem.pseudo_dirs[:] = [""]
        del _registry["locked"]


def put_tree(fs: MemoryFileSystem, directory: Path, path: str) -> None:
    """Copies all files below a local directory."""
    for file in directory.rglob("*"):
        if file.is_file():
            fs.pipe_file(f"{path}/{file.relative_to(directory)}", file.read_bytes())
