"""The local disk says what the operating system says, and what fsspec's own local filesystem says."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from reshard.core.errors import StorageError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.disk import LOCAL_DISK, LocalDisk
from reshard.core.storage.listing import find_entries, find_files, kind_of, list_folder
from reshard.core.storage.store import OTHER, Entry
from reshard.core.storage.urls import parse_url


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


def described(entry: Entry) -> tuple[object, ...]:
    size = () if entry.is_link else (entry.size_bytes,)
    return (entry.path, entry.kind, entry.is_link, entry.changed, *size)


def by_fsspec(entry: Mapping[str, object]) -> tuple[object, ...]:
    size = () if entry["islink"] else (entry["size"],)
    return (entry["name"], entry["type"], entry["islink"], entry["mtime"], *size)


def test_listing(folder: Path) -> None:
    found = LOCAL_DISK.list(str(folder))
    assert len(found) == 8
    assert sorted(map(described, found)) == sorted(map(by_fsspec, LocalFileSystem().ls(str(folder), detail=True)))
    assert {entry.kind for entry in found if entry.is_link} == {OTHER}


def test_everything_below(folder: Path) -> None:
    found = LOCAL_DISK.find(str(folder))
    expected = LocalFileSystem().find(str(folder), detail=True)
    assert list(map(described, found)) == list(map(by_fsspec, expected.values()))


@pytest.mark.parametrize("name", ["", "file", "sub", "to_file", "to_folder", "pipe"])
def test_one_path(folder: Path, name: str) -> None:
    path = str(folder / name).rstrip("/")
    found = LOCAL_DISK.stat(path)
    expected = LocalFileSystem().info(path)
    assert (found.path, found.kind, found.is_link, found.size_bytes, found.changed) == (
        *(expected[field] for field in ("name", "type", "islink", "size", "mtime")),
    )
    assert LOCAL_DISK.list(str(folder / "file")) == [LOCAL_DISK.stat(str(folder / "file"))]


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
    assert isinstance(plain.store, LocalDisk)
    assert plain.store.url(plain.path) == str(folder)


def test_a_version_differs_though_time_and_size_are_as_before(folder: Path) -> None:
    path = str(folder / "file")
    before, status = LOCAL_DISK.stat(path), os.stat(path)
    (folder / "file").write_bytes(b"five")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = LOCAL_DISK.stat(path)
    assert (after.size_bytes, after.changed) == (before.size_bytes, before.changed)
    assert after.version != before.version


def test_bytes_are_read_at_offsets_up_to_the_end(folder: Path) -> None:
    reader = LOCAL_DISK.open(str(folder / "sub/deep/last"))
    first, second = bytearray(2), bytearray(3)
    assert reader.read_into(1, [memoryview(first), memoryview(second)]) == 5
    assert bytes(first + second) == b"ixsix"
    assert reader.read_into(4, [memoryview(first), memoryview(second)]) == 2
    assert reader.size_bytes == 6
    reader.close()
    reader.close()


def test_an_output_appears_when_it_is_finished(folder: Path) -> None:
    path = folder / "new/out"
    output = LOCAL_DISK.create(str(path), UploadBuffers())
    output.write(b"content")
    assert not path.exists()
    output.finish()
    assert path.read_bytes() == b"content"
    assert os.listdir(path.parent) == ["out"]


def test_an_output_that_is_discarded_leaves_nothing(folder: Path) -> None:
    path = folder / "file"
    output = LOCAL_DISK.create(str(path), UploadBuffers())
    output.write(b"content")
    output.discard()
    assert path.read_bytes() == b"four"
    assert len(os.listdir(folder)) == 8


def test_a_copy_of_a_pipe_is_refused(folder: Path) -> None:
    with pytest.raises(OSError, match="not a regular file|pipe"):
        LOCAL_DISK.copy(str(folder / "pipe"), str(folder / "copy"))
    assert not (folder / "copy").exists()


def test_modes_of_files(folder: Path) -> None:
    LOCAL_DISK.restrict(str(folder / "file"), 0o400)
    assert (folder / "file").stat().st_mode & 0o777 == 0o400
    parse_url("memory://bucket/file").store.restrict("bucket/file", 0o400)  # which has none


def test_links_are_removed_and_not_what_they_lead_to(folder: Path) -> None:
    for name in ("to_file", "to_folder", "dangling", "empty"):
        LOCAL_DISK.remove(str(folder / name))
    assert sorted(os.listdir(folder)) == sorted(["file", "sub", "pipe", os.fsdecode(b"no\xfftext")])
    with pytest.raises(FileNotFoundError):
        LOCAL_DISK.remove(str(folder / "missing"))


def test_a_limit_takes_no_memory(tmp_path: Path) -> None:
    """Python reserves as much for a read as is asked for, whatever the file has."""
    (tmp_path / "small").write_bytes(b"content")
    assert LOCAL_DISK.read_beginning(str(tmp_path / "small"), 2**50) == b"content"
    assert LOCAL_DISK.read_beginning(str(tmp_path / "small"), 4) == b"cont"
