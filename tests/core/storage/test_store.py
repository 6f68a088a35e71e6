"""The storages that need no server keep their promises."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest

from reshard.core.storage import web
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import parse_url
from tests.support.store_tests import BUFFERS, Place, ReadingTests, StoreTests
from tests.support.web_server import web_server


def _put(path: str, data: bytes) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def _get(path: str) -> bytes | None:
    return Path(path).read_bytes() if Path(path).exists() else None


class TestLocalDisk(StoreTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(LOCAL_DISK, str(tmp_path), _put, _get)

    def test_what_it_can_do(self, place: Place) -> None:
        store = place.store
        assert store.has_paths
        assert store.renames
        assert store.is_near


class TestMemory(StoreTests):
    hides_unfinished: ClassVar[bool] = False

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        fs = fsspec.filesystem("memory")

        def get(path: str) -> bytes | None:
            return bytes(fs.cat_file(path)) if fs.exists(path) else None

        yield Place(parse_url("memory://bucket/place").store, "/bucket/place", fs.pipe_file, get)
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]

    def test_what_it_can_do(self, place: Place) -> None:
        store = place.store
        assert not store.has_paths
        assert not store.renames


class TestDirectoryOfFsspec(StoreTests):
    """`dir://`, which leads to another filesystem."""

    hides_unfinished: ClassVar[bool] = False

    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
        options = {"path": str(tmp_path), "target_protocol": "file", "target_options": {"auto_mkdir": True}}
        monkeypatch.setattr("fsspec.config.conf", {"dir": options})  # as users say what is not in URLs
        store, root = open_store("dir://place", {})
        return Place(
            store, root, lambda path, data: _put(f"{tmp_path}/{path}", data), lambda path: _get(f"{tmp_path}/{path}")
        )


class TestWeb(ReadingTests):
    shows_versions: ClassVar[bool] = True

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        (tmp_path / "root" / "place").mkdir(parents=True)
        with web_server(tmp_path / "root") as server:
            store, path = open_store(f"{server.url}/place", {})
            host = path.removesuffix("/place")

            def put(path: str, data: bytes) -> None:
                _put(str(server.root) + path.removeprefix(host), data)

            yield Place(store, path, put, lambda path: None)
            web._client(os.getpid(), True).close()
            web._client.cache_clear()

    def test_it_is_only_read(self, place: Place) -> None:
        store, path = place.store, place.at("file")
        attempts: list[Callable[[], object]] = [
            lambda: store.put(path, b"x"),
            lambda: store.create(path, BUFFERS),
            lambda: store.copy(path, place.at("copy")),
            lambda: store.remove(path),
        ]
        for attempt in attempts:
            with pytest.raises(OSError, match="can only be read: name a target elsewhere") as caught:
                attempt()
            assert store.reason_of(caught.value, path)
