"""Empty objects such as `models/`, by which consoles make directories: they are no files, and are no content.

The server is one that keeps names alone: the one of the other tests cannot keep such names.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from reshard.core.errors import StorageError, TargetError
from reshard.core.layouts.targets import is_target_name
from reshard.core.storage.listing import find_entries, find_files, list_folder, looked_into
from reshard.core.storage.publishing import foreign_names, list_names, other_files, remove_tree
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import Location

ETAG = '"0123"'


class Names(ThreadingHTTPServer):
    """A server of the S3 protocol with one bucket, whose objects are said by key and size."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sizes: dict[str, int] = {}
        self.listed: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Names

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        self.server.listed.append(prefix)
        objects, folders = "", set()
        for key, size in sorted(self.server.sizes.items()):
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                known = f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{escape(ETAG)}</ETag>"
                objects += f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>{known}</Contents>"
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        self._answer(200, f"<ListBucketResult>{objects}{common}</ListBucketResult>".encode())

    def do_HEAD(self) -> None:
        size = self.server.sizes.get(self._key)
        self._answer(404 if size is None else 200, bytes(size or 0))

    def do_DELETE(self) -> None:
        self.server.sizes.pop(self._key, None)
        self._answer(204, b"")

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).partition("/bucket/")[2]

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", ETAG)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Names]:
    with Names() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def target(server: Names) -> Location:
    options = {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "key": "k", "secret": "s"}
    return Location(*open_store("s3://bucket/out", options))


def test_a_directory_made_in_a_console_is_an_empty_one(server: Names, target: Location) -> None:
    server.sizes = {"out/": 0}
    assert list_names(target) == []
    assert list_folder(target) == []
    assert find_files(target) == []


def test_rank_folders_made_in_a_console_are_nothing(server: Names, target: Location) -> None:
    server.sizes = {"out/": 0, "out/rank_0/": 0, "out/rank_1/": 0, "out/.reshard/leases/a": 3}
    assert list_names(target) == [".reshard"]
    assert other_files(target, [], is_target_name) == []
    server.sizes["out/rank_1/a.ckpt"] = 5
    assert list_names(target) == [".reshard", "rank_0", "rank_1"]
    assert other_files(target, [], is_target_name) == [target.child("rank_1", "a.ckpt")]


def test_whether_ranks_have_files_is_asked_of_one_that_has(server: Names, target: Location) -> None:
    server.sizes = {f"out/rank_{rank}/a.ckpt": 5 for rank in range(8)}
    assert len(list_names(target)) == 8
    assert server.listed == ["out/", "out/rank_0/"]


def test_other_folders_made_in_a_console_are_somebody_elses(server: Names, target: Location) -> None:
    server.sizes = {"out/": 0, "out/notes/": 0}
    assert foreign_names(target, is_target_name) == ["notes"]


def test_an_object_with_a_slash_at_its_end_and_content_is_a_file(server: Names, target: Location) -> None:
    server.sizes = {"out/rank_0/": 7}
    assert find_files(target) == [target.child("rank_0")]
    server.sizes = {"out": 7}
    with pytest.raises(TargetError, match="out: is a file, the target must be a directory"):
        list_names(target)


def test_a_marker_beside_an_object_of_its_name_is_no_file(server: Names, target: Location) -> None:
    server.sizes = {"out": 1, "out/": 0, "out/a": 3, "out/a/": 0, "out/a/b": 5, "out/empty": 0}
    found = find_entries(target)
    assert {path.removeprefix("bucket/"): entry.size_bytes for path, entry in found.items()} == {
        "out/a": 3,
        "out/a/b": 5,
        "out/empty": 0,
    }


def test_kind_and_entries_are_asked_for_at_once(server: Names, target: Location) -> None:
    server.sizes = {"out/": 0, "out/a": 5, "out/rank_0/": 0, "outside": 1}
    kind, entries = looked_into(target, "read it")
    assert (kind, entries) == ("directory", list_folder(target))
    assert [entry.path for entry in entries] == ["bucket/out/a", "bucket/out/rank_0"]
    server.sizes = {"out": 3}
    assert looked_into(target, "read it") == ("file", [])
    server.sizes = {"out/": 0}
    assert looked_into(target, "read it") == ("directory", [])
    server.sizes = {"outside": 1}
    with pytest.raises(StorageError, match="cannot read it: no such file or directory"):
        looked_into(target, "read it")


def test_what_is_beside_a_tree_stays_and_so_do_markers(server: Names, target: Location) -> None:
    """The client cannot name an object with a slash at its end."""
    server.sizes = {"out": 1, "out/": 0, "out/a/": 0, "out/a/b": 5, "outside/": 0}
    remove_tree(target)
    assert server.sizes == {"out": 1, "out/": 0, "out/a/": 0, "outside/": 0}
