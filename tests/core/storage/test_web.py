"""Plain web servers as sources: index pages, ranges, versions, and what is refused."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.errors import CatalogError, InputError, StorageError
from reshard.core.storage.listing import exists, find_files, kind_of, list_folder, names_in
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.reading import open_source, read_bytes, read_small_file, read_version
from reshard.core.storage.store import DIRECTORY, FILE
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes, write_file
from tests.support.web_server import WebServer, web_server

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    root = tmp_path / "root"
    (root / "run" / "rank 0%").mkdir(parents=True)
    (root / "run" / "a.ckpt").write_bytes(CONTENT)
    (root / "run" / "rank 0%" / "ü?#.ckpt").write_bytes(CONTENT[:10])
    (root / "run" / "empty").write_bytes(b"")
    with web_server(root) as running:
        yield running


@pytest.fixture
def run(server: WebServer) -> Location:
    return parse_url(f"{server.url}/run")


def failure(location: Location) -> str:
    """Why a file cannot be read in parts."""
    with pytest.raises(StorageError) as caught:
        read_bytes(open_source(location), 5, 10)
    assert str(location) in str(caught.value)
    return str(caught.value)


def test_an_index_page_lists_files_and_directories(run: Location) -> None:
    found = {entry.path: (entry.kind, entry.size_bytes) for entry in list_folder(run)}
    assert found == {
        run.child("a.ckpt").path: (FILE, len(CONTENT)),
        run.child("empty").path: (FILE, 0),
        run.child("rank 0%").path: (DIRECTORY, 0),
    }
    assert [location.path for location in find_files(run)] == [
        run.child("a.ckpt").path,
        run.child("empty").path,
        run.child("rank 0%", "ü?#.ckpt").path,
    ]


def test_a_url_leads_back_whatever_the_name(run: Location) -> None:
    for location in (run, run.parent, *find_files(run), run.child("rank_{rank}", "net_part{0,1}.ckpt")):
        assert parse_url(str(location)) == location
        assert parse_url(f"{location}/") == location
    assert str(run.child("rank 0%", "ü?#.ckpt")).endswith("/run/rank%200%25/%C3%BC%3F%23.ckpt")
    assert str(run.child("rank_{rank}")).endswith("/run/rank_{rank}")


def test_links_that_lead_elsewhere_are_no_files_of_the_directory(run: Location, server: WebServer) -> None:
    page = (
        '<a href="../">up</a><a href="?C=N;O=D">by name</a><a href="a.ckpt">a</a><a href="/run/empty">b</a>'
        f'<a href="{server.url}/run/rank%200%25/">c</a><a href="https://example.com/run/x">d</a><a href="x/y">e</a>'
        '<a href="#top">f</a><a href="a.ckpt">again</a><a>g</a><a href="gone">h</a><a href="/run/..%2f">i</a>'
    )
    (server.root / "run" / "index.html").write_text(page)
    assert names_in(run) == ["a.ckpt", "empty", "rank 0%"]


def test_kinds(run: Location) -> None:
    assert kind_of(run) == kind_of(run.parent) == DIRECTORY
    assert kind_of(run.child("a.ckpt")) == FILE
    assert not exists(run.child("none"))
    assert [entry.path for entry in list_folder(run.child("a.ckpt"))] == [run.child("a.ckpt").path]
    with pytest.raises(StorageError, match="no such file or directory"):
        list_folder(run.child("none"))


def test_parts_of_a_file_are_read_and_each_answer_proves_its_version(run: Location, server: WebServer) -> None:
    file = open_source(run.child("a.ckpt"))
    assert (file.size_bytes, read_bytes(file, 250, 12)) == (len(CONTENT), CONTENT[250:262])
    assert file.read_many([(0, 3), (10_000, 240)]) == [CONTENT[:3], CONTENT[10_000:]]
    server.asked.clear()
    known = open_source(run.child("a.ckpt"), file.version)
    assert read_bytes(known, 1, 2) == CONTENT[1:3]
    assert [method for method, _, _ in server.asked] == ["GET"]


@pytest.mark.parametrize("new", [CONTENT[::-1], CONTENT + b"x", b"x"])
def test_a_file_that_changes_meanwhile_is_noticed(run: Location, server: WebServer, new: bytes) -> None:
    file = open_source(run.child("a.ckpt"))
    (server.root / "run" / "a.ckpt").write_bytes(new)
    with pytest.raises(CatalogError, match="changed while it was being read"):
        read_bytes(file, 5, 10)


def test_the_time_of_the_last_change_is_a_version_too(run: Location, server: WebServer) -> None:
    server.versions = ("Last-Modified",)
    file = open_source(run.child("a.ckpt"))
    assert read_bytes(file, 5, 10) == CONTENT[5:15]
    os.utime(server.root / "run" / "a.ckpt", (0, 0))
    with pytest.raises(CatalogError, match=r"it was .* GMT, it is .*1970 00:00:00 GMT"):
        read_bytes(file, 5, 10)


def test_a_server_that_tells_no_version_is_refused(run: Location, server: WebServer) -> None:
    server.versions = ()
    with pytest.raises(StorageError, match="sends neither ETag nor Last-Modified: a change would go unnoticed"):
        read_version(run.child("a.ckpt"))


def test_small_files_are_read_whole_even_without_ranges(run: Location, server: WebServer) -> None:
    server.knows_ranges = False
    assert read_small_file(run.child("a.ckpt"), 100_000) == CONTENT
    assert read_small_file(run.child("empty"), 100_000) == b""
    with pytest.raises(StorageError, match="Is a directory"):
        read_small_file(run, 100_000)


def test_a_server_without_ranges_is_refused(run: Location, server: WebServer) -> None:
    server.knows_ranges = False
    assert "the server answers requests for parts of files with the whole: download the files" in failure(
        run.child("a.ckpt")
    )


def test_a_server_that_sends_other_ranges_is_refused(run: Location, server: WebServer) -> None:
    server.shifts_ranges = True
    assert "another part of the file than it was asked for" in failure(run.child("a.ckpt"))


def test_what_is_sent_compressed_is_refused(run: Location, server: WebServer) -> None:
    server.compresses = True
    assert "the server sends it compressed (gzip), of another size" in failure(run.child("a.ckpt"))
    with pytest.raises(StorageError, match="compressed"):
        read_small_file(run.child("a.ckpt"), 100_000)


def test_no_compression_is_asked_for(run: Location, server: WebServer) -> None:
    assert read_small_file(run.child("a.ckpt"), 100_000) == CONTENT
    assert {headers["accept-encoding"] for _, _, headers in server.asked} == {"identity"}


def test_a_busy_server_is_asked_again(run: Location, server: WebServer) -> None:
    server.statuses["/run/a.ckpt"] = [503, 429, 500]
    assert read_small_file(run.child("a.ckpt"), 100_000) == CONTENT
    server.statuses["/run/a.ckpt"] = [400]
    with pytest.raises(StorageError, match="cannot read it: HTTP 400"):
        read_small_file(run.child("a.ckpt"), 100_000)


def test_access_denied(run: Location, server: WebServer) -> None:
    server.statuses["/run/a.ckpt"] = [403]
    with pytest.raises(StorageError, match="permission denied"):
        read_small_file(run.child("a.ckpt"), 100_000)


def test_redirections_are_followed_and_headers_given_to_one_server_only(
    run: Location, server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIONS", json.dumps({"headers": {"X-Key": "hunter2"}}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.ckpt").write_bytes(CONTENT)
    with web_server(tmp_path / "other") as other, named_storages([(str(run), "env:OPTIONS")]):
        server.redirects["/run/b.ckpt"] = f"{other.url}/b.ckpt"
        file = open_source(parse_url(f"{run}/b.ckpt"))
        assert read_bytes(file, 5, 10) == CONTENT[5:15]
        assert all(headers["x-key"] == "hunter2" for _, _, headers in server.asked)
        assert other.asked
        assert not any("x-key" in headers for _, _, headers in other.asked)


def test_redirections_without_end_are_refused(run: Location, server: WebServer) -> None:
    server.redirects["/run/a.ckpt"] = "/run/a.ckpt"
    assert "redirects without end" in failure(run.child("a.ckpt"))


def test_where_nothing_is_listed_the_index_of_a_hugging_face_directory_is(run: Location, server: WebServer) -> None:
    server.lists = False
    index = server.root / "run" / "model.safetensors.index.json"
    assert kind_of(run) == DIRECTORY
    with pytest.raises(StorageError, match=r"lists no files there: let it make index pages \(nginx: autoindex on\)"):
        list_folder(run)
    index.write_text(json.dumps({"weight_map": {"w": "a.ckpt", "v": "empty", "u": "a.ckpt"}}))
    assert names_in(run) == ["a.ckpt", "empty", index.name]
    for spoiled in ('{"weight_map": {"w": "../../x"}}', "{", "[]", '{"weight_map": {"w": 1}}'):
        index.write_text(spoiled)
        with pytest.raises(StorageError, match=r"model.safetensors.index.json, which is to list the files, is damaged"):
            list_folder(run)


def test_nothing_is_written_there(run: Location) -> None:
    wanted = "a web server can only be read: name a target elsewhere"
    with pytest.raises(InputError, match=wanted):
        write_bytes(run.child("x"), b"x")
    with pytest.raises(InputError, match=wanted), write_file(run.child("x")):
        pass


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://host/run?x=1", "a query cannot be used; a name that has ? or # is written with %3F or %23"),
        ("http://host/run#x", "a query cannot be used"),
        ("http:///run", "its beginning: must look like https://host:port"),
        ("http://host:port/run", "its beginning: must look like https://host:port"),
    ],
)
def test_urls_that_lead_nowhere_are_refused(url: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_url(url)
    assert f"{url!r}: cannot be opened: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"header": {}}, "header: no such storage option; there are headers, verify"),
        ({"headers": {"X-Key": 1}}, "headers.X-Key: must be a text"),
        ({"headers": "hunter2"}, "headers: must be an object of texts"),
        ({"verify": "/none"}, "No such file"),
        ({"verify": 1.5}, "verify: must be true, false, or the path of a bundle of certificates"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", json.dumps(options))
    with (
        pytest.raises(InputError) as caught,
        named_storages([("https://host/run", "env:OPTIONS")]),
    ):
        pass
    assert reason in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_down_is_named(run: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(tmp_path) as gone:
        location = parse_url(f"{gone.url}/x")
    with pytest.raises(
        StorageError, match=r"127.0.0.1:\d+ cannot be reached: the name is wrong, or it is down"
    ) as caught:
        exists(location)
    assert caught.value.transient


def test_reading_ends_with_the_file(run: Location) -> None:
    reader = run.store.open(run.child("a.ckpt").path)
    parts = [bytearray(2), bytearray(4)]
    assert reader.read_into(len(CONTENT) - 3, [memoryview(part) for part in parts]) == 3
    assert parts == [CONTENT[-3:-1], CONTENT[-1:] + bytes(3)]
    assert reader.read_into(len(CONTENT), [memoryview(parts[0])]) == 0
