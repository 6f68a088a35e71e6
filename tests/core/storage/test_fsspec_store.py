"""Storages of fsspec: which one a URL means, how it is named again, and what is made of filesystems' peculiarities."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractBufferedFile

from reshard.core.errors import InputError, StorageError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.copying import copy_file
from reshard.core.storage.fsspec_store import FsspecStore
from reshard.core.storage.listing import exists, find_entries, find_files, kind_of, list_folder, names_in, stat
from reshard.core.storage.reading import open_source, read_bytes, read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.store import DIRECTORY, FILE, Store
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import claimed_while
from reshard.core.storage.writing import write_bytes, write_file


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_store(url, options)
    assert repr(url) in str(caught.value)
    return str(caught.value)


class Disk(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A directory as a server of files shows it: written in place, renamed at once, and each client for one thread."""

    protocol = "disk"
    root: ClassVar[Path]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread = threading.get_ident()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(super()._strip_protocol(path)).strip("/")

    def place(self, path: str) -> Path:
        assert self.thread == threading.get_ident()
        return self.root / path.strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        place = self.place(path)
        status = place.lstat()
        kind = "directory" if place.is_dir() else "link" if place.is_symlink() else "file"
        changed = datetime.fromtimestamp(status.st_mtime, UTC)
        return {"name": path, "size": status.st_size, "type": kind, "mtime": changed}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return [self.info(f"{path.rstrip('/')}/{name}") for name in os.listdir(self.place(path))]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return self.place(path).open(mode, buffering=0)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.place(path).mkdir(parents=True, exist_ok=exist_ok)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        os.rename(self.place(path1), self.place(path2))

    def _rm(self, path: str) -> None:
        self.place(path).unlink()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(2, 0.0))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    """A filesystem that a program registers at run time."""
    monkeypatch.setitem(_registry, "disk", Disk)
    monkeypatch.setattr(Disk, "root", tmp_path / "disk", raising=False)
    (tmp_path / "disk" / "run").mkdir(parents=True)
    yield parse_url("disk://run")
    Disk.clear_instance_cache()


def registered(monkeypatch: pytest.MonkeyPatch, kind: type, name: str = "odd") -> Location:
    monkeypatch.setitem(_registry, name, kind)
    return parse_url(f"{name}://run")


# ---- which one ----


def test_a_local_filesystem_is_the_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "mine", type("Mine", (LocalFileSystem,), {"protocol": "mine"}))
    assert parse_url(f"file://{tmp_path}/x") == parse_url(f"local://{tmp_path}/x") == parse_url(str(tmp_path / "x"))


def test_the_package_that_a_protocol_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal("hdfs://models/run").endswith("hdfs:// needs a package that is not installed: pip install pyarrow")
    assert refusal("webdav://models/run").endswith("not installed: Install webdav4 to access WebDAV")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("xyz://models/run", "unknown storage xyz://; known are file://, s3://, obs://, gs://, abfs://"),
        ("S3://models/run", "unknown storage S3://; known are s3://"),
        ("obss://models/run", "obs://"),
        ("/data/x://y", "unknown storage /data/x://"),
    ],
)
def test_of_an_unknown_protocol_near_ones_are_told(url: str, reason: str) -> None:
    assert reason in refusal(url)


def test_an_option_that_a_filesystem_has_not_is_told_without_its_value() -> None:
    reason = refusal("ftp://host/run", usr="hunter2")
    assert "cannot be opened" in reason
    assert "hunter2" not in reason


# ---- named again ----


@pytest.mark.parametrize(
    "url",
    [
        "memory:///models/run",
        "webhdfs://namenode/user/me/run",
        "webhdfs://namenode:9870/user/me/run",
        "webhdfs://me@namenode:9870/user/me/run",
    ],
)
def test_a_url_names_the_same_place_again(url: str) -> None:
    store, path = open_store(url, {})
    assert store.url(path) == url
    assert open_store(store.url(path), {}) == (store, path)


def test_a_host_that_is_named_in_the_options_is_told_and_its_password_is_not() -> None:
    options = {"host": "namenode", "port": 9870, "user": "me", "password": "hunter2"}
    store, path = open_store("webhdfs:///user/me/run", options)
    assert store.url(path) == "webhdfs://me@namenode:9870/user/me/run"
    assert open_store(store.url(path), options) == (store, path)


SSHError = type("SSHError", (Exception,), {"__module__": "paramiko.ssh_exception"})


class Accounts(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Takes from a URL what it does not tell again."""

    protocol = "accounts"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path)).rpartition("@")[2]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"account": path.partition("://")[2].partition("@")[0]} if "@" in path else {}


def test_a_url_that_could_not_be_told_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "accounts", Accounts)
    assert refusal("accounts://me@models/run").endswith(
        "cannot be used, since records would name it accounts://models/run, which is another place. "
        "Move the storage's settings from the URL to storage options"
    )
    open_store("accounts://models/run", {"account": "me"})


# ---- sharing ----


def test_stores_with_the_same_settings_are_equal_whatever_thread_made_them(disk: Location) -> None:
    def opened(**options: Any) -> Store:
        return open_store("disk://run", options)[0]

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(opened).result()
    assert other == disk.store
    assert hash(other) == hash(disk.store)
    assert other.is_same(disk.store)
    assert opened(x=1) != disk.store
    assert parse_url("memory://run").store != disk.store


def test_each_thread_has_a_client_of_its_own(disk: Location) -> None:
    write_bytes(disk.child("a"), bytes(range(200)))
    file = open_source(disk.child("a"))
    start = threading.Barrier(8)

    def read(number: int) -> bytes:
        start.wait()
        return read_bytes(file, number, 1)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [bytes([number]) for number in range(8)]


def test_a_fork_has_a_client_of_its_own(disk: Location) -> None:
    before = disk.store.fs  # type: ignore[attr-defined]
    child = os.fork()
    if not child:
        os._exit(disk.store.fs is before)  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert disk.store.fs is before  # type: ignore[attr-defined]


# ---- writing in place ----


def test_what_is_written_in_place_has_its_name_only_when_it_is_whole(disk: Location, tmp_path: Path) -> None:
    place = tmp_path / "disk" / "run"
    write_bytes(disk.child("a"), b"old")
    with write_file(disk.child("a")) as file:
        file.write(b"n")
        assert (place / "a").read_bytes() == b"old"
        assert [path.name[:3] for path in place.iterdir() if path.suffix == ".tmp"] == [".a."]
        file.write(b"ew")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {"a": b"new"}


def broken_block(location: Location) -> None:
    with write_file(location) as file:
        file.write(b"half")
        raise ZeroDivisionError


def test_what_fails_leaves_what_was_there(disk: Location) -> None:
    location = disk.child("a")
    write_bytes(location, b"old")
    with pytest.raises(ZeroDivisionError):
        broken_block(location)
    assert read_small_file(location, 10) == b"old"
    assert names_in(location.parent) == ["a"]


def test_what_fails_in_memory_leaves_no_half_of_it() -> None:
    location = parse_url("memory://run/a")
    with pytest.raises(ZeroDivisionError):
        broken_block(location)
    assert not exists(location)


def test_a_file_that_did_not_arrive_whole_does_not_get_its_name(
    disk: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Losing:
        def __init__(self, file: Any) -> None:
            self.file = file
            self.close = file.close

        def write(self, data: bytes) -> int:
            self.file.write(data[:-1])
            return len(data)

    monkeypatch.setattr(Disk, "_open", lambda self, path, mode="rb", **_: Losing(self.place(path).open(mode)))
    with pytest.raises(StorageError, match="only 3 of 4 bytes arrived"):
        write_bytes(disk.child("a"), b"abcd")
    assert list((tmp_path / "disk" / "run").iterdir()) == []


@pytest.mark.parametrize("says_so", [True, False])
def test_a_storage_that_does_not_replace_by_renaming_loses_the_old_file_last(
    disk: Location, monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    """webhdfs answers that it renamed nothing, which fsspec ignores: the old file stayed."""

    def mv(self: Disk, path1: str, path2: str, **_: Any) -> None:
        if not self.place(path2).exists():
            os.rename(self.place(path1), self.place(path2))
        elif says_so:
            raise OSError("exists")

    monkeypatch.setattr(Disk, "mv", mv)
    for data in (b"old", b"new"):
        write_bytes(disk.child("a"), data)
        assert read_small_file(disk.child("a"), 10) == data
    assert names_in(disk) == ["a"]


def test_a_renaming_whose_answer_was_lost_does_not_cost_the_file(
    disk: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file was taken for the old one, and removed."""
    write_bytes(disk.child("a"), b"old")
    renamed, answers = Disk.mv, iter([False])

    def mv(self: Disk, path1: str, path2: str, **_: Any) -> None:
        renamed(self, path1, path2)
        if not next(answers, True):
            raise ConnectionError("closed")

    monkeypatch.setattr(Disk, "mv", mv)
    with pytest.raises(StorageError, match="cannot complete it: closed"), write_file(disk.child("a")) as file:
        file.write(b"new")
    assert read_small_file(disk.child("a"), 10) == b"new"
    assert names_in(disk) == ["a"]


def test_missing_directories_are_made(disk: Location) -> None:
    write_bytes(disk.child("x", "y", "a"), b"a")
    with write_file(disk.child("z", "b")) as file:
        file.write(b"b")
    assert [location.path for location in find_files(disk)] == ["/run/x/y/a", "/run/z/b"]


def test_files_are_copied_where_the_filesystem_cannot(disk: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.store._COPIED_BYTES", 3)
    for data in (b"", b"123456789", b"12345"):
        write_bytes(disk.child("a"), data)
        copy_file(disk.child("a"), disk.child("deep", "b"))
        assert read_small_file(disk.child("deep", "b"), 10) == data
    with pytest.raises(StorageError, match="no such file"):
        copy_file(disk.child("none"), disk.child("b"))
    assert not exists(disk.child("b"))


class Buffered(MemoryFileSystem):  # type: ignore[misc]
    """Sends a file when it is closed."""

    protocol = "odd"

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _Upload(self, path, mode) if mode == "wb" else super()._open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        with self.open(path, "wb") as file:
            file.write(value)


class _Upload(AbstractBufferedFile):  # type: ignore[misc]
    discarded = 0

    def _initiate_upload(self) -> None:
        self.data = b""

    def _upload_chunk(self, final: bool = False) -> bool:
        self.data += self.buffer.getvalue()
        if final:
            MemoryFileSystem._open(self.fs, self.path, "wb", data=self.data)
        return True

    def discard(self) -> None:
        _Upload.discarded += 1


def test_a_buffered_file_is_discarded_and_not_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FsspecStore, "renames_files", False)
    location = registered(monkeypatch, Buffered).child("a")
    with pytest.raises(ZeroDivisionError):
        broken_block(location)
    assert not exists(location)
    assert _Upload.discarded == 1
    with write_file(location) as file:
        file.write(b"whole")
    assert read_small_file(location, 10) == b"whole"
    remove_file(location)


# ---- looking and reading ----


def test_a_file_has_one_version_however_it_is_looked_for(disk: Location) -> None:
    for location in (disk.child("a"), parse_url("memory://run/a")):
        write_bytes(location, b"abc")
        [listed] = list_folder(location.parent)
        assert listed == stat(location)
        assert find_entries(location.parent) == {location.path: listed}
        assert listed.version
        assert open_source(location).version == listed.file_version
        remove_file(location)


def info_of(monkeypatch: pytest.MonkeyPatch, **info: Any) -> Any:
    """What becomes of what a filesystem says of a file."""
    monkeypatch.setattr(Disk, "info", lambda *_: {"name": "/run/a", "size": 1, "type": "file", **info})
    return stat(parse_url("disk://run/a"))


@pytest.mark.parametrize(
    ("info", "version", "changed"),
    [
        ({"ETag": '"abc"', "mtime": 5}, "abc", 5.0),
        ({"modificationTime": 1_700_000_000_123}, "2023-11-14 22:13:20.123000+00:00", 1_700_000_000.123),
        ({"modify": "20261126080000"}, "20261126080000", None),
        ({"LastModified": datetime(2026, 11, 26, tzinfo=UTC)}, "2026-11-26 00:00:00+00:00", 1_795_651_200.0),
        ({"created": "2026-11-26T00:00:00+00:00"}, "2026-11-26 00:00:00+00:00", 1_795_651_200.0),
        ({"sha": "0123"}, "0123", None),
        ({"mtime": None}, "", None),
        ({}, "", None),
    ],
)
@pytest.mark.usefixtures("disk")
def test_versions_and_times_have_many_names(
    info: dict[str, Any], version: str, changed: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = info_of(monkeypatch, **info)
    assert (found.version, found.changed) == (version, changed)


@pytest.mark.usefixtures("disk")
def test_links_and_other_things_are_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert info_of(monkeypatch, type="link").is_link
    assert info_of(monkeypatch, type="other").kind not in (FILE, DIRECTORY)
    marker = info_of(monkeypatch, name="/run/a/", size=0)
    assert (marker.path, marker.kind) == ("/run/a", DIRECTORY)


def test_a_directory_is_not_a_file_and_the_other_way_round(disk: Location) -> None:
    write_bytes(disk.child("a"), b"abc")
    assert [entry.path for entry in list_folder(disk.child("a"))] == ["/run/a"]
    assert (kind_of(disk), kind_of(disk.child("a"))) == (DIRECTORY, FILE)
    with pytest.raises(StorageError, match="Is a directory"):
        open_source(disk)
    with pytest.raises(StorageError, match="no such file"):
        list_folder(disk.child("none"))
    assert find_files(disk.child("none")) == []


def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    disk: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(disk.child("x", "a"), b"abc")
    listed = Disk.ls

    def ls(self: Disk, path: str, detail: bool = True, **_: Any) -> list[Any]:
        if path == "/run/x":
            raise PermissionError(13, "Permission denied")
        return listed(self, path)

    monkeypatch.setattr(Disk, "ls", ls)
    with pytest.raises(StorageError, match="cannot list the files in it: permission denied"):
        find_files(disk)


class Caching(MemoryFileSystem):  # type: ignore[misc]
    """Remembers its listings until its cache is invalidated."""

    protocol = "odd"
    listings: ClassVar[dict[str, Any]] = {}

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self.listings.setdefault(path, super().ls(path, detail, **options))

    def info(self, path: str, **options: Any) -> Any:
        known = [info for infos in self.listings.values() for info in infos if info["name"] == path]
        return known[0] if known else super().info(path, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()


def test_nothing_is_remembered_of_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    run = registered(monkeypatch, Caching)
    for number in range(3):
        MemoryFileSystem().pipe_file(run.child("a").path, bytes(number))
        assert [entry.size_bytes for entry in (stat(run.child("a")), *list_folder(run))] == [number, number]
    remove_file(run.child("a"))
    assert not exists(run.child("a"))


def test_a_short_answer_is_no_answer(disk: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(disk.child("a"), b"0123456789")
    file = open_source(disk.child("a"))
    for wrong in (b"01", b"0123456789"):
        answers = iter([wrong, b"01234"])
        monkeypatch.setattr(Disk, "cat_file", lambda *_, answers=answers, **__: next(answers))
        assert read_bytes(file, 0, 5) == b"01234"
    monkeypatch.setattr(Disk, "cat_file", lambda *_, **__: b"01")
    with pytest.raises(StorageError, match="wrong length: got 2 of 5 bytes"):
        read_bytes(file, 0, 5)


# ---- errors ----


class PackageError(Exception):
    """What some package raises."""


@pytest.mark.parametrize(
    ("error", "reason", "transient"),
    [
        (PackageError("password=hunter2 is not enough"), "PackageError: password=… is not enough", False),
        (EOFError(), "the connection was closed", True),
        (NotImplementedError("read only"), "its filesystem cannot do that: read only", False),
        (TimeoutError(), "no answer in time", True),
        (PermissionError(), "permission denied", False),
    ],
)
def test_errors_of_packages_are_told(
    error: Exception, reason: str, transient: bool, disk: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Disk, "info", failing)
    with pytest.raises(StorageError) as caught:
        stat(disk)
    assert str(caught.value) == f"{disk}: cannot look for it: {reason}"
    assert caught.value.transient is transient


@pytest.mark.parametrize(
    ("error", "reason", "transient"),
    [
        (SSHError("Server connection dropped"), "SSHError: Server connection dropped", True),
        (RuntimeError("Name node is in safe mode"), "Name node is in safe mode", False),
        (EOFError(), "the connection was closed", True),
    ],
)
def test_errors_of_packages_are_named_and_judged(
    error: Exception, reason: str, transient: bool, disk: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that ended were not opened again."""

    def info(*_: object) -> None:
        raise error

    monkeypatch.setattr(Disk, "info", info)
    with pytest.raises(StorageError) as caught:
        stat(disk)
    assert str(caught.value).endswith(f"cannot look for it: {reason}")
    assert caught.value.transient is transient


def test_errors_of_our_own_are_not_disguised(disk: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "info", lambda *_: os.environ["NO_SUCH_NAME"])
    with pytest.raises(KeyError):
        stat(disk)


def test_a_lease_in_doubt_can_be_renewed(disk: Location) -> None:
    def doubt() -> None:
        raise StorageError("in doubt")

    with claimed_while(doubt):
        disk.store.put(disk.child("lease.json").path, b"renewed")
    assert read_small_file(disk.child("lease.json"), 10) == b"renewed"
