"""adlfs with its real client, against a server that answers as Azure does when something is wrong."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from adlfs import AzureBlobFileSystem

from reshard.core.errors import StorageError, UnusableStorageError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage import azure
from reshard.core.storage.copying import copy_file
from reshard.core.storage.file_versions import Stamp, read_stamp
from reshard.core.storage.listing import find_files, is_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes, write_file

BODY = """<?xml version="1.0" encoding="utf-8"?>
<Error><Code>{code}</Code><Message>It said {code}.
RequestId:1916c54a
Time:2026-11-23T22:33:23.229Z</Message></Error>"""


Answer = tuple[int, dict[str, str]]


def refusal(status: int, code: str) -> Answer:
    return status, {"x-ms-error-code": code}


class Handler(BaseHTTPRequestHandler):
    """Answers with what is next, and at the end with the last of it again and again."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[list[Answer]] = []
    count: ClassVar[int] = 0
    port: ClassVar[int] = 0

    def do_GET(self) -> None:
        type(self).count += 1
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        code = headers.get("x-ms-error-code", "")
        body = BODY.format(code=code).encode() if code and self.command != "HEAD" else b""
        self.send_response(status)
        for name, value in {"Content-Type": "application/xml", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_DELETE = do_GET  # noqa: N815 (the names that http.server looks for)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(2, 0.001))
    for name in ("_FIRST_PAUSE_SECONDS", "_MORE_SECONDS", "_JITTER_SECONDS"):
        monkeypatch.setattr(azure, name, 0.01)


@pytest.fixture
def server() -> Iterator[type[Handler]]:
    """The server's answers may be set."""

    class Own(Handler):
        pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    Own.port = running.server_address[1]
    yield Own
    running.shutdown()
    running.server_close()


def location_at(port: int, monkeypatch: pytest.MonkeyPatch) -> Location:
    endpoint = f"http://127.0.0.1:{port}/account"
    text = f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey=c2VjcmV0;BlobEndpoint={endpoint};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    AzureBlobFileSystem.clear_instance_cache()
    return parse_url("az://models/run/file")


@pytest.fixture
def location(server: type[Handler], monkeypatch: pytest.MonkeyPatch) -> Location:
    return location_at(server.port, monkeypatch)


ANSWERS = [
    (404, "ContainerNotFound", "there is no container 'models': create it, or name another"),
    (
        403,
        "AuthenticationFailed",
        "the credentials are wrong, or have expired (AuthenticationFailed: ",
    ),
    (403, "AuthorizationPermissionMismatch", "access denied: the credentials are wrong, or lack the permission ("),
    (403, "AuthorizationFailure", "access denied: the credentials are wrong, or lack the permission ("),
    (409, "SomethingNew", ": SomethingNew: "),
]


@pytest.mark.parametrize(("status", "code", "message"), ANSWERS, ids=[code for _, code, _ in ANSWERS])
def test_a_refusal_is_told_in_one_line(
    location: Location, server: type[Handler], status: int, code: str, message: str
) -> None:
    server.answers = [refusal(status, code)]
    attempts: list[Callable[[], object]] = [lambda: write_bytes(location, b"x")]
    if code != "ContainerNotFound":  # where adlfs looks for something, it says only that nothing is there
        attempts += [lambda: read_small_file(location, 100), lambda: find_files(location)]
    for attempt in attempts:
        server.count = 0
        with pytest.raises(StorageError) as caught:
            attempt()
        text = str(caught.value)
        assert message in text
        assert " It said" in text or " Operation returned an invalid status" in text or "container" in text
        assert "\n" not in text
        assert not caught.value.transient
        assert not is_missing(caught.value)
        assert isinstance(caught.value, UnusableStorageError) == ("models'" in message or "wrong, or have" in message)
        assert server.count <= 3


def test_a_block_that_is_refused_is_the_storages_failure(location: Location, server: type[Handler]) -> None:
    """adlfs raises a RuntimeError in its place."""
    server.answers = [refusal(403, "AuthorizationPermissionMismatch")]
    with pytest.raises(StorageError, match="/file: cannot complete it: access denied: "), write_file(location) as file:
        file.write(b"x" * 1000)


def test_a_missing_blob_is_missing(location: Location, server: type[Handler]) -> None:
    server.answers = [refusal(404, "BlobNotFound")]
    with pytest.raises(
        StorageError, match="abfs://models/run/file: cannot read .*: no such file or directory"
    ) as caught:
        read_small_file(location, 100)
    assert is_missing(caught.value)


def test_a_busy_server_is_asked_again_within_seconds(location: Location, server: type[Handler]) -> None:
    server.answers = [refusal(503, "ServerBusy")]
    began = time.monotonic()
    with pytest.raises(StorageError, match="ServerBusy") as caught:
        write_bytes(location, b"x")
    assert caught.value.transient
    assert server.count > 3
    assert time.monotonic() - began < 50, "Azure's own retries take a minute"


def test_a_server_that_is_not_there_is_reported_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(StorageError, match="Cannot connect to host 127.0.0.1") as caught:
        find_files(location_at(port, monkeypatch))
    assert caught.value.transient
    assert time.monotonic() - began < 50, "Azure's own retries take a minute"


ACCEPTED: Answer = (202, {"x-ms-copy-id": "1", "x-ms-copy-status": "pending", "ETag": '"0x1"'})


def state(status: str) -> Answer:
    """Of a copy."""
    return 200, {"x-ms-copy-id": "1", "x-ms-copy-status": status, "x-ms-blob-type": "BlockBlob", "ETag": '"0x1"'}


def test_a_copy_that_is_pending_is_waited_for(
    location: Location, server: type[Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure, "_LOOK_SECONDS", 0.01)
    server.answers = [ACCEPTED, state("pending"), state("pending"), state("success")]
    copy_file(location, location.parent.child("copy"))
    assert server.count == 4
    server.answers = [ACCEPTED, state("pending"), state("aborted")]
    with pytest.raises(StorageError, match="/copy: cannot copy abfs://models/run/file to it: .* copying .aborted"):
        copy_file(location, location.parent.child("copy"))


def test_a_file_that_was_replaced_by_one_of_the_same_size_has_another_stamp(
    location: Location, server: type[Handler]
) -> None:
    def look(etag: str, second: int) -> object:
        changed = f"Mon, 23 Nov 2026 22:00:0{second} GMT"
        server.answers = [(200, {"x-ms-blob-type": "BlockBlob", "ETag": f'"{etag}"', "Last-Modified": changed})]
        return read_stamp(location)

    first, second = look("0x1", 1), look("0x2", 2)
    assert isinstance(first, Stamp)
    assert isinstance(second, Stamp)
    assert (first.version, second.version) == ('"0x1"', '"0x2"')
    assert first.changed is not None
    assert second.changed == first.changed + 1
