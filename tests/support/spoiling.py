"""Copies of checkpoints, and single bits flipped in them."""

import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def spoil_storage(path: Path) -> None:
    """Flip a bit of the largest storage in a file of torch's, and give it the CRC of what it is then."""
    with zipfile.ZipFile(path) as archive:
        storages = [member for member in archive.infolist() if "/data/" in member.filename]
    largest = max(storages, key=lambda member: member.file_size)
    data = bytearray(path.read_bytes())
    lengths = data[largest.header_offset + 26 :][:4]
    start = largest.header_offset + 30 + sum(int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2))
    data[start] ^= 0x10
    crc = zlib.crc32(data[start:][: largest.file_size])
    path.write_bytes(data.replace(largest.CRC.to_bytes(4, "little"), crc.to_bytes(4, "little")))


@contextmanager
def changed(contents: Mapping[Path, bytes | None]) -> Iterator[None]:
    """Give files other contents, or none at all, and in the end what they had."""
    before = {path: path.read_bytes() if path.exists() else None for path in contents}
    _write(contents)
    try:
        yield
    finally:
        _write(before)


def _write(contents: Mapping[Path, bytes | None]) -> None:
    for path, data in contents.items():
        if data is None:
            path.unlink()
        else:
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
