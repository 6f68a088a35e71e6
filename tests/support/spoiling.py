"""Copies of checkpoints, and single bits flipped in them."""

import shutil
from pathlib import Path

from reshard.core.files.any_format import read_index
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import Case


def spoil(path: Path, name: str, byte: int = 0) -> None:
    """Flip a bit of a parameter's contents."""
    file = open_source(parse_url(str(path)))
    extent = read_index(file).entries[name].extents[0]
    file.close()
    data = bytearray(path.read_bytes())
    data[extent.offset + byte] ^= 0x10
    path.write_bytes(data)


def copied(found: Case, directory: Path) -> Path:
    """Copy the source of a case, writable."""
    shutil.copytree(found.directory / "src", directory)
    for path in directory.rglob("*"):
        path.chmod(0o755)
    return directory


def file_of(directory: Path, rank: int) -> Path:
    """The only file of a rank."""
    [path] = (directory / f"rank_{rank}").iterdir()
    return path
