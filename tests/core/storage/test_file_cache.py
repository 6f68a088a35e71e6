"""Caches of whole files: each version of a file is fetched once, and none is taken for another."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reshard.core.errors import StorageError
from reshard.core.storage.file_cache import FileCache
from reshard.core.storage.listing import find_files, names_in
from reshard.core.storage.reading import is_proven, open_source, read_bytes, read_small_file, read_version
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from tests.support.web_server import WebServer, web_server

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "root" / "run").mkdir(parents=True)
    for name in ("a.ckpt", "b.ckpt"):
        (tmp_path / "root" / "run" / name).write_bytes(CONTENT)
    (tmp_path / "root" / "run" / "empty").write_bytes(b"")
    with web_server(tmp_path / "root") as running:
        yield running


def cached(server: WebServer, directory: Path) -> Location:
    """The directory of the server, through a cache of its own."""
    behind = parse_url(f"{server.url}/run")
    return Location(FileCache("filecache", behind.store, str(directory)), behind.path)


def fetched(server: WebServer) -> list[str]:
    """Paths of the files whose contents were asked for."""
    return [path for method, path, headers in server.asked if method == "GET" and "range" in headers]


def test_a_file_is_fetched_once(server: WebServer, tmp_path: Path) -> None:
    for _ in range(2):  # the second run finds the copies of the first
        run = cached(server, tmp_path / "cache")
        for _ in range(2):
            file = open_source(run.child("a.ckpt"))
            assert read_bytes(file, 250, 12) == CONTENT[250:262]
            assert is_proven(file)
        assert open_source(run.child("empty")).size_bytes == 0
    assert fetched(server) == ["/run/a.ckpt"]


def test_threads_wait_for_a_file_that_is_being_fetched(server: WebServer, tmp_path: Path) -> None:
    run = cached(server, tmp_path / "cache")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: read_bytes(open_source(run.child("a.ckpt")), 0, 100), range(16)))
    assert found == [CONTENT[:100]] * 16
    assert fetched(server) == ["/run/a.ckpt"]


def test_a_file_that_is_replaced_is_fetched_again(server: WebServer, tmp_path: Path) -> None:
    run = cached(server, tmp_path / "cache")
    old = open_source(run.child("a.ckpt"))
    (server.root / "run" / "a.ckpt").write_bytes(CONTENT[::-1])
    new = open_source(run.child("a.ckpt"))
    assert (read_bytes(old, 0, 9), read_bytes(new, 0, 9)) == (CONTENT[:9], CONTENT[::-1][:9])
    assert old.version != new.version == read_version(parse_url(f"{server.url}/run/a.ckpt"))
    (server.root / "run" / "a.ckpt").unlink()
    with pytest.raises(StorageError, match="no such file"):
        open_source(run.child("a.ckpt"))


def test_a_file_that_is_replaced_while_it_is_fetched_is_not_kept(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.storage.store._COPIED_BYTES", 1000)
    run = cached(server, tmp_path / "cache")
    place, versions = server.root / "run" / "a.ckpt", [CONTENT, CONTENT[::-1]]
    server.before_range = lambda: place.write_bytes(versions[len(fetched(server)) % 2])
    with pytest.raises(StorageError, match="it changed while it was being read"):
        open_source(run.child("a.ckpt"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_all_else_is_asked_of_the_storage(server: WebServer, tmp_path: Path) -> None:
    run = cached(server, tmp_path / "cache")
    assert names_in(run) == ["a.ckpt", "b.ckpt", "empty"]
    assert [str(file) for file in find_files(run)] == [
        f"filecache::{server.url}/run/{name}" for name in ("a.ckpt", "b.ckpt", "empty")
    ]
    assert read_small_file(run.child("b.ckpt"), 10**6) == CONTENT
    assert not (tmp_path / "cache").exists()


def test_what_has_no_version_is_not_copied(server: WebServer, tmp_path: Path) -> None:
    server.versions = ()
    with pytest.raises(StorageError, match="does not say when a file changes: a copy of it might be out of date"):
        open_source(cached(server, tmp_path).child("a.ckpt"))


def test_a_copy_that_cannot_be_written_is_told(server: WebServer, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(StorageError, match=r"a\.ckpt: cannot read it: (File exists|Not a directory)"):
        open_source(cached(server, tmp_path / "cache").child("a.ckpt"))


def test_nothing_is_written_through_a_cache(server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="a storage behind a cache can only be read: name a target elsewhere"):
        write_bytes(cached(server, tmp_path).child("x"), b"x")
