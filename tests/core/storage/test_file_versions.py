"""Versions of files differ whenever their contents do."""

import os
from pathlib import Path

import fsspec
import pytest

from reshard.core.storage.fsspec_store import FsspecStore
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location, parse_url
from tests.support.small_files import CONTENT


def version_of(location: Location) -> str:
    source = open_source(location)
    source.close()
    return source.version


def test_the_version_changes_with_the_content(file: Location) -> None:
    first = version_of(file)
    assert version_of(file) == first
    file.store.put(file.path, CONTENT[::-1])
    assert version_of(file) != first


def test_the_version_of_a_local_file_is_its_times_and_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    versions = set()
    for data, time_ns in ((b"ab", 10), (b"cd", 11), (b"abc", 10)):
        path.write_bytes(data)
        os.utime(path, ns=(time_ns, time_ns))
        versions.add(version_of(parse_url(str(path))))
    assert len(versions) == 3


def test_a_file_that_was_rewritten_with_its_old_modification_time_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"ab")
    status, before = path.stat(), version_of(parse_url(str(path)))
    while path.stat().st_ctime_ns == status.st_ctime_ns:  # clocks of file systems tick every few milliseconds
        path.write_bytes(b"cd")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert version_of(parse_url(str(path))) != before


class StoreWithEtags(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Says of every file what an object store says."""

    protocol = "etags"
    cachable = False

    def __init__(self, **message: object) -> None:
        super().__init__()
        self.message = message

    def info(self, path: str, **_: object) -> dict[str, object]:
        return {"name": path, "size": 3, "type": "file"} | self.message


@pytest.mark.parametrize(
    ("message", "version"),
    [
        ({"ETag": '"0123abcd"', "LastModified": "today"}, "3-0123abcd"),
        ({"etag": "W/5"}, "3-W/5"),
        ({"ETag": None, "LastModified": "today"}, "3-today"),
        ({}, "3"),
    ],
)
def test_the_version_of_an_object_is_its_etag(message: dict[str, object], version: str) -> None:
    assert version_of(Location(FsspecStore(StoreWithEtags(**message)), "bucket/f")) == version
