"""Files are written whole or not at all."""

import errno
import io
import os
from pathlib import Path

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

from reshard.core.errors import StorageError
from reshard.core.storage.copying import copy_file
from reshard.core.storage.fsspec_store import FsspecStore
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes, write_file
from tests.support.small_files import CONTENT, contents, names_in


def write_and_fail(location: Location, error: BaseException) -> None:
    with write_file(location) as output:
        output.write(CONTENT)
        raise error


def test_a_file_is_written_whole(folder: Location) -> None:
    location = folder.child("rank_0", "deep", "a.ckpt")
    with write_file(location) as output:
        output.write(CONTENT[:10])
        output.write(memoryview(CONTENT)[10:50_000])
        output.write(bytearray(CONTENT[50_000:]))
        output.write(b"")
    assert contents(location) == CONTENT
    assert names_in(folder) == ["rank_0/deep/a.ckpt"]


def test_a_local_name_appears_only_at_the_end(tmp_path: Path) -> None:
    location = parse_url(str(tmp_path / "a.ckpt"))
    (tmp_path / "a.ckpt").write_bytes(b"former")
    (tmp_path / "a.ckpt").chmod(0o400)
    with write_file(location) as output:
        output.write(b"new")
        assert (tmp_path / "a.ckpt").read_bytes() == b"former"
    assert (tmp_path / "a.ckpt").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_nothing_is_left_of_a_failure(folder: Location) -> None:
    for error in (KeyError("bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            write_and_fail(folder.child("rank_0", "a.ckpt"), error)
        assert names_in(folder) == []


def test_a_local_file_stays_when_its_replacement_fails(tmp_path: Path) -> None:
    location = parse_url(str(tmp_path / "a.ckpt"))
    write_bytes(location, b"former")
    with pytest.raises(KeyError):
        write_and_fail(location, KeyError("bug"))
    assert (tmp_path / "a.ckpt").read_bytes() == b"former"
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_failure_to_complete_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="a.ckpt: cannot write 100000 bytes: No space left on device") as caught:
        write_bytes(parse_url(str(tmp_path / "a.ckpt")), CONTENT)
    assert not caught.value.transient
    assert os.listdir(tmp_path) == []


def test_a_file_cannot_take_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(StorageError, match="a: cannot write 1 bytes: Is a directory"):
        write_bytes(parse_url(str(tmp_path / "a")), b"x")
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="a/b: cannot write 1 bytes: (Not a directory|File exists)"):
        write_bytes(parse_url(str(tmp_path / "a" / "b")), b"x")


def test_a_file_takes_the_place_of_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_bytes(parse_url(str(tmp_path / "a")), b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    (tmp_path / "b").mkdir()
    copy_file(parse_url(str(tmp_path / "a")), parse_url(str(tmp_path / "b")))
    assert (tmp_path / "b").read_bytes() == b"x"
    (tmp_path / "c").mkdir()
    remove_file(parse_url(str(tmp_path / "c")))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


class UnclosableFile(io.FileIO):
    """A network file that fails on close, when some file systems report failed writes."""

    def close(self) -> None:
        is_open = not self.closed
        super().close()
        if is_open:
            raise OSError(errno.EIO, "Input/output error")


def unclosable(path: str, mode: str, *, buffering: int = -1) -> UnclosableFile:
    return UnclosableFile(path, mode)


def test_a_file_that_was_written_and_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.atomic_rename.open", unclosable, raising=False)
    with pytest.raises(StorageError, match="a: cannot write 100000 bytes: Input/output error"):
        write_bytes(parse_url(str(tmp_path / "a")), CONTENT)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_given_up_and_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.atomic_rename.open", unclosable, raising=False)
    with pytest.raises(KeyError):
        write_and_fail(parse_url(str(tmp_path / "a")), KeyError("what failed first"))
    assert os.listdir(tmp_path) == []


class Upload(AbstractBufferedFile):  # type: ignore[misc]
    """An upload as of an object store: does not exist before the last part is."""

    def __init__(self, fs: "UploadStore", path: str) -> None:
        super().__init__(fs, path, "wb", block_size=1000)

    def _initiate_upload(self) -> None:
        self.fs.begun.add(self.path)
        self.fs.pending.add(self.path)

    def _upload_chunk(self, final: bool = False) -> bool:
        if self.fs.broken:
            raise ConnectionError("the store is gone")
        if final:
            self.fs.finished.add(self.path)
        return True

    def discard(self) -> None:
        self.fs.pending.discard(self.path)
        if self.fs.broken == "always":
            raise ConnectionError("the store is gone")


class UploadStore(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """An object store that may break."""

    protocol = "uploads"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[str] = set()
        self.pending: set[str] = set()
        self.finished: set[str] = set()
        self.broken = ""

    def open(self, path: str, mode: str = "rb", **_: object) -> Upload:
        return Upload(self, path)


def test_uploads_are_completed_at_the_end() -> None:
    store = UploadStore()
    with write_file(Location(FsspecStore(store), "bucket/a")) as output:
        output.write(CONTENT)
        assert not store.finished
    assert store.finished == {"bucket/a"}


def test_failed_uploads_are_aborted() -> None:
    store = UploadStore()
    with pytest.raises(KeyError):
        write_and_fail(Location(FsspecStore(store), "bucket/a"), KeyError("bug"))
    assert store.begun == {"bucket/a"}
    assert not store.finished
    assert not store.pending


@pytest.mark.parametrize("broken", ["once", "always"])
@pytest.mark.parametrize("size_bytes", [10, 5000])
def test_a_store_that_breaks_is_reported_even_if_the_upload_cannot_be_aborted(broken: str, size_bytes: int) -> None:
    store = UploadStore()

    def write() -> None:
        with write_file(Location(FsspecStore(store), "bucket/a")) as output:
            store.broken = broken
            output.write(CONTENT[:size_bytes])

    with pytest.raises(StorageError, match="uploads://bucket/a: cannot (write|complete)") as caught:
        write()
    assert caught.value.transient
    assert not store.finished
    assert not store.pending
