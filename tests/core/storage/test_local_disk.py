"""The local disk says what fsspec's own local filesystem says."""

import os
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from reshard.core.errors import StorageError
from reshard.core.storage.listing import find_entries, find_files, kind_of, list_folder
from reshard.core.storage.local_disk import LOCAL_DISK, LocalDisk
from reshard.core.storage.urls import parse_url

COMMON = ("name", "type", "islink", "mtime")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "földer with\nlines"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "file").write_bytes(b"four")
    (folder / "sub" / "deep" / "last").write_bytes(b"sixsix")
    (folder / os.fsdecode(b"no\xfftext")).write_bytes(b"")
    (folder / "to_file").symlink_to("file")
    (folder / "to_folder").symlink_to("sub")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    return folder


def common(entry: dict[str, object]) -> tuple[object, ...]:
    size = () if entry["islink"] else (entry["size"],)
    return (*(entry[field] for field in COMMON), *size)


def test_listing(folder: Path) -> None:
    found = LOCAL_DISK.ls(str(folder), detail=True)
    assert len(found) == 8
    expected = LocalFileSystem().ls(str(folder), detail=True)
    assert sorted(map(common, found)) == sorted(map(common, expected))
    assert {entry["type"] for entry in found if entry["islink"]} == {"other"}


def test_everything_below(folder: Path) -> None:
    found = LOCAL_DISK.find(str(folder), detail=True)
    expected = LocalFileSystem().find(str(folder), detail=True)
    assert list(found) == list(expected)
    assert list(map(common, found.values())) == list(map(common, expected.values()))


@pytest.mark.parametrize("name", ["", "file", "sub", "to_file", "to_folder", "pipe"])
def test_one_path(folder: Path, name: str) -> None:
    path = str(folder / name)
    found = LOCAL_DISK.info(path)
    expected = LocalFileSystem().info(path)
    assert {field: expected[field] for field in found} == found
    assert LOCAL_DISK.ls(str(folder / "file"), detail=True) == [LOCAL_DISK.info(str(folder / "file"))]


@pytest.mark.parametrize("name", ["missing", "file/below", "dangling"])
def test_missing(folder: Path, name: str) -> None:
    location = parse_url(str(folder)).child(name)
    assert kind_of(location) is None
    assert find_files(location) == []
    with pytest.raises(StorageError, match="no such file or directory|Not a directory"):
        list_folder(location)


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match="cannot list the files in it: permission denied"):
        find_entries(parse_url(str(folder)))


def test_urls_with_the_protocol_are_the_same_place(folder: Path) -> None:
    plain = parse_url(str(folder))
    assert parse_url(f"file://{folder}") == plain
    assert parse_url(f"local://{folder}") == plain
    assert isinstance(plain.fs, LocalDisk)
    assert LOCAL_DISK.unstrip_protocol(plain.path) == LocalFileSystem().unstrip_protocol(plain.path)
