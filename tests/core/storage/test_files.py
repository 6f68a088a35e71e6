"""Files: read at offsets by many threads, written whole or not at all."""

import errno
import io
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import botocore.exceptions  # type: ignore[import-untyped]
import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

from reshard.core.errors import CheckpointError, StorageError
from reshard.core.storage.copying import copy_file
from reshard.core.storage.reading import open_source, read_bytes, read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes, write_file

CONTENT = random.Random(1).randbytes(100_000)


@pytest.fixture(params=["local", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    if request.param == "local":
        yield parse_url(str(tmp_path))
        return
    location = parse_url("memory://bucket/directory")
    yield location
    location.fs.store.clear()
    location.fs.pseudo_dirs[:] = [""]


@pytest.fixture
def file(directory: Location) -> Location:
    location = directory.child("content.bin")
    directory.fs.pipe_file(location.path, CONTENT)
    return location


def names_in(directory: Location) -> list[str]:
    """All files below a directory, whatever wrote them."""
    return sorted(str(path).removeprefix(directory.path + "/") for path in directory.fs.find(directory.path))


# ---- reading ----


def test_many_threads_read_at_random_offsets(file: Location) -> None:
    source = open_source(file)
    assert source.size_bytes == len(CONTENT)

    def reads(seed: int) -> bool:
        chance = random.Random(seed)
        for _ in range(50):
            start, stop = sorted(chance.choices(range(len(CONTENT) + 1), k=2))
            if read_bytes(source, start, stop - start) != CONTENT[start:stop]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(reads, range(16)))
    source.close()


def test_a_part_of_a_buffer_is_filled(file: Location) -> None:
    source = open_source(file)
    buffer = bytearray(b"." * 10)
    source.read_into(7, memoryview(buffer)[2:5])
    assert bytes(buffer) == b".." + CONTENT[7:10] + b"....."
    source.close()


@pytest.mark.parametrize(("offset", "length"), [(99_990, 11), (100_000, 1), (200_000, 5)])
def test_a_file_that_ends_early_is_named_with_the_offset(file: Location, offset: int, length: int) -> None:
    source = open_source(file)
    with pytest.raises(CheckpointError, match=r"content.bin: ends at byte \d+, earlier than it should: truncated"):
        read_bytes(source, offset, length)
    source.close()


def test_a_file_truncated_while_it_is_open(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    source = open_source(parse_url(str(tmp_path / "f")))
    os.truncate(tmp_path / "f", 1234)
    with pytest.raises(CheckpointError, match="/f: ends at byte 1234"):
        read_bytes(source, 1000, 1000)
    source.close()


def test_nothing_is_asked_for_an_empty_range(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    # HTTP's "bytes=5-4" is no range: servers then send all
    monkeypatch.setattr(type(file.fs), "cat_file", lambda *_, **__: CONTENT)
    source = open_source(file)
    assert read_bytes(source, 5, 0) == b""
    source.close()


def test_missing_file(directory: Location) -> None:
    with pytest.raises(StorageError, match="nothing.ckpt: cannot read it: no such file or directory") as caught:
        open_source(directory.child("nothing.ckpt"))
    assert not caught.value.transient


def test_a_directory_is_no_file(directory: Location, file: Location) -> None:
    with pytest.raises(StorageError, match="cannot read it: Is a directory"):
        open_source(file.parent)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")  # root may read everything

    monkeypatch.setattr("os.open", refusing)
    with pytest.raises(StorageError, match="secret: cannot read it: permission denied"):
        open_source(parse_url(str(tmp_path / "secret")))


def version_of(location: Location) -> str:
    source = open_source(location)
    source.close()
    return source.version


def test_the_version_changes_with_the_content(file: Location) -> None:
    first = version_of(file)
    assert version_of(file) == first
    file.fs.pipe_file(file.path, CONTENT[::-1])
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

    def __init__(self, **told: object) -> None:
        super().__init__()
        self.told = told

    def info(self, path: str, **_: object) -> dict[str, object]:
        return {"name": path, "size": 3, "type": "file"} | self.told


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ({"ETag": '"0123abcd"', "LastModified": "today"}, "3-0123abcd"),
        ({"etag": "W/5"}, "3-W/5"),
        ({"ETag": None, "LastModified": "today"}, "3-today"),
        ({}, "3"),
    ],
)
def test_the_version_of_an_object_is_its_etag(told: dict[str, object], version: str) -> None:
    assert version_of(Location(StoreWithEtags(**told), "bucket/f")) == version


def test_small_files(directory: Location, file: Location) -> None:
    assert read_small_file(file, len(CONTENT)) == CONTENT
    with pytest.raises(CheckpointError, match="content.bin: has more than 99999 bytes, the limit for such a file"):
        read_small_file(file, len(CONTENT) - 1)
    write_bytes(directory.child("empty"), b"")
    assert read_small_file(directory.child("empty"), 0) == b""


# ---- writing ----


def write_and_fail(location: Location, error: BaseException) -> None:
    with write_file(location) as output:
        output.write(CONTENT)
        raise error


def test_a_file_is_written_whole(directory: Location) -> None:
    location = directory.child("rank_0", "deep", "a.ckpt")
    with write_file(location) as output:
        output.write(CONTENT[:10])
        output.write(memoryview(CONTENT)[10:50_000])
        output.write(bytearray(CONTENT[50_000:]))
        output.write(b"")
    assert directory.fs.cat_file(location.path) == CONTENT
    assert names_in(directory) == ["rank_0/deep/a.ckpt"]


def test_a_local_name_appears_only_at_the_end(tmp_path: Path) -> None:
    location = parse_url(str(tmp_path / "a.ckpt"))
    (tmp_path / "a.ckpt").write_bytes(b"former")
    (tmp_path / "a.ckpt").chmod(0o400)
    with write_file(location) as output:
        output.write(b"new")
        assert (tmp_path / "a.ckpt").read_bytes() == b"former"
    assert (tmp_path / "a.ckpt").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_nothing_is_left_of_a_failure(directory: Location) -> None:
    for error in (KeyError("bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            write_and_fail(directory.child("rank_0", "a.ckpt"), error)
        assert names_in(directory) == []


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
    with pytest.raises(StorageError, match="a.ckpt: cannot complete it: No space left on device") as caught:
        write_bytes(parse_url(str(tmp_path / "a.ckpt")), CONTENT)
    assert not caught.value.transient
    assert os.listdir(tmp_path) == []


def test_a_file_cannot_take_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(StorageError, match="a: cannot complete it: Is a directory"):
        write_bytes(parse_url(str(tmp_path / "a")), b"x")
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="a/b: cannot create it: (Not a directory|File exists)"):
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


def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_bytes(b"precious")
    directory = parse_url(str(tmp_path)).child("link")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for change in (
        lambda: write_bytes(directory.child("a"), b"x"),
        lambda: copy_file(directory.child("a"), directory.child("b")),
        lambda: remove_file(directory.child("a")),
    ):
        with pytest.raises(StorageError, match=f"a link leads from {tmp_path}/link to {tmp_path}/elsewhere"):
            change()
    assert os.listdir(tmp_path / "elsewhere") == ["a"]
    assert (tmp_path / "elsewhere/a").read_bytes() == b"precious"
    remove_file(parse_url(str(tmp_path)).child("link"))
    assert os.listdir(tmp_path) == ["elsewhere"], "the link itself is removed"


def test_a_device_is_not_copied(tmp_path: Path) -> None:
    """A device has no end, and would fill the target."""
    (tmp_path / "a").symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="b: cannot copy .*: a device, not a regular file"):
        copy_file(Location(parse_url("/").fs, str(tmp_path / "a")), parse_url(str(tmp_path / "b")))
    assert os.listdir(tmp_path) == ["a"]


class UnclosableFile(io.FileIO):
    """A network file that fails on close, when some file systems report failed writes."""

    def close(self) -> None:
        is_open = not self.closed
        super().close()
        if is_open:
            raise OSError(errno.EIO, "Input/output error")


def unclosable(path: str, mode: str, *, buffering: int = -1) -> UnclosableFile:
    return UnclosableFile(path, mode)


def test_a_file_that_was_read_and_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "a").write_bytes(CONTENT)
    file = open_source(parse_url(str(tmp_path / "a")))
    close = os.close
    with monkeypatch.context() as patch:
        patch.setattr("os.close", failing)
        with pytest.raises(StorageError, match="a: cannot close it: Input/output error") as caught:
            file.close()
    assert caught.value.transient
    file.close()


def test_a_file_that_was_written_and_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.writing.open", unclosable, raising=False)
    with pytest.raises(StorageError, match="a: cannot complete it: Input/output error"):
        write_bytes(parse_url(str(tmp_path / "a")), CONTENT)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_given_up_and_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.writing.open", unclosable, raising=False)
    with pytest.raises(KeyError):
        write_and_fail(parse_url(str(tmp_path / "a")), KeyError("what failed first"))
    assert os.listdir(tmp_path) == []


class Upload(AbstractBufferedFile):  # type: ignore[misc]
    """An upload as of an object store: nothing is there before the last part is."""

    def __init__(self, fs: "UploadStore", path: str) -> None:
        super().__init__(fs, path, "wb", block_size=1000)

    def _initiate_upload(self) -> None:
        self.fs.begun.add(self.path)
        self.fs.pending.add(self.path)

    def _upload_chunk(self, final: bool = False) -> bool:
        if self.fs.broken:
            raise botocore.exceptions.EndpointConnectionError(endpoint_url="http://store")
        if final:
            self.fs.finished.add(self.path)
        return True

    def discard(self) -> None:
        self.fs.pending.discard(self.path)
        if self.fs.broken == "for good":
            raise botocore.exceptions.EndpointConnectionError(endpoint_url="http://store")


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
    with write_file(Location(store, "bucket/a")) as output:
        output.write(CONTENT)
        assert not store.finished
    assert store.finished == {"bucket/a"}


def test_failed_uploads_are_aborted() -> None:
    store = UploadStore()
    with pytest.raises(KeyError):
        write_and_fail(Location(store, "bucket/a"), KeyError("bug"))
    assert store.begun == {"bucket/a"}
    assert not store.finished
    assert not store.pending


@pytest.mark.parametrize("broken", ["once", "for good"])
@pytest.mark.parametrize("size_bytes", [10, 5000])
def test_a_store_that_breaks_is_reported_even_if_the_upload_cannot_be_aborted(broken: str, size_bytes: int) -> None:
    store = UploadStore()

    def write() -> None:
        with write_file(Location(store, "bucket/a")) as output:
            store.broken = broken
            output.write(CONTENT[:size_bytes])

    with pytest.raises(StorageError, match="uploads://bucket/a: cannot (write|complete)") as caught:
        write()
    assert caught.value.transient
    assert not store.finished
    assert not store.pending


# ---- copying ----


def test_copy(directory: Location, file: Location) -> None:
    copy = directory.child("rank_1", "copy.bin")
    copy_file(file, copy)
    assert directory.fs.cat_file(copy.path) == CONTENT
    assert names_in(directory) == ["content.bin", "rank_1/copy.bin"]


def test_copy_of_nothing(directory: Location) -> None:
    with pytest.raises(StorageError, match=r"copy: cannot copy .*missing to it: no such file"):
        copy_file(directory.child("missing"), directory.child("copy"))
    assert names_in(directory) == []


def test_a_failed_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(CONTENT)

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(StorageError, match="b: cannot copy .*a to it: Input/output error"):
        copy_file(parse_url(str(tmp_path / "a")), parse_url(str(tmp_path / "b")))
    assert os.listdir(tmp_path) == ["a"]
