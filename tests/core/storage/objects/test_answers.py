"""What services answer, and what happens instead, as obstore and AWS's own client tell it, in words for users."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from reshard.core.errors import StorageError, UnusableStorageError
from reshard.core.runtime import retry
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import Location
from tests.support.canned_server import OBJECT, Answer, CannedServer, canned_server, error_answer
from tests.support.certificates import Authority

KEYS = {"key": "k", "secret": "s"}
PATH = "models/run/file"
Act = Callable[[ObjectStore], object]

ACTS: dict[str, Act] = {
    "HEAD": lambda store: store.stat(PATH),
    "LIST": lambda store: store.list("models/run"),
    "FIND": lambda store: store.find("models/run"),
    "GET": lambda store: store.read_beginning(PATH, 10),
    "RANGE": lambda store: store.open(PATH, "13-x").read_into(0, [memoryview(bytearray(5))]),
    "PUT": lambda store: store.put(PATH, b"x"),
    "DELETE": lambda store: store.remove(PATH),
    # by AWS's own client
    "UPLOADS": lambda store: store.abandoned("models/run"),
    "COPY": lambda store: store.service.copy_large(("models", "a"), ("models", "b")),
}
BY_NAME = ("LIST", "FIND", "GET", "PUT", "DELETE", "UPLOADS")
"""Requests whose answers have a body."""


def opened(url: str, protocol: str = "s3", **options: Any) -> Location:
    store, path = open_store(f"{protocol}://{PATH}", KEYS | {"endpoint_url": url} | options)
    return Location(store, path)


def failure(location: Location, act: str) -> StorageError:
    store = location.store
    assert isinstance(store, ObjectStore)
    with pytest.raises(StorageError) as caught, mapped_errors(location, "do it"):
        ACTS[act](store)
    assert str(caught.value).startswith(f"{location}: cannot do it: ")
    assert "Debug source" not in "".join(format_exception(caught.value))
    return caught.value


def kind_of(error: StorageError) -> str:
    if error.transient:
        return "transient"
    return "unusable" if isinstance(error, UnusableStorageError) else ""


# ---- answers ----

ANSWERS = [
    (error_answer(404, "NoSuchKey"), "no such file or directory", ""),
    (error_answer(404, "NoSuchBucket"), "there is no bucket 'models': create it, or name another", "unusable"),
    (error_answer(400, "InvalidBucketName"), "'models' cannot be a bucket's name", "unusable"),
    (error_answer(403, "InvalidAccessKeyId"), "the credentials are wrong (InvalidAccessKeyId: it said)", "unusable"),
    (error_answer(403, "SignatureDoesNotMatch"), "the credentials are wrong (SignatureDoesNotMatch: ", "unusable"),
    (error_answer(400, "InvalidToken"), "the credentials are wrong (InvalidToken: ", "unusable"),
    (error_answer(400, "ExpiredToken"), "the credentials have expired (ExpiredToken: it said): renew them", ""),
    (error_answer(400, "TokenRefreshRequired"), "the credentials have expired (TokenRefreshRequired: ", ""),
    (error_answer(403, "RequestTimeTooSkewed"), "this machine's clock is too far from the server's", ""),
    (
        error_answer(400, "AuthorizationHeaderMalformed", Region="eu-west-1"),
        "the bucket 'models' is in another region or at another endpoint, eu-west-1 (",
        "unusable",
    ),
    (error_answer(400, "AuthorizationHeaderMalformed"), "AuthorizationHeaderMalformed: it said", ""),
    (error_answer(400, "IllegalLocationConstraintException"), "is in another region or at another", "unusable"),
    (error_answer(400, "VirtualHostDomainRequired"), "use obs://, or addressing_style virtual", ""),
    (error_answer(403, "InvalidObjectState"), "it is archived: have the storage restore it first", ""),
    (error_answer(412, "PreconditionFailed"), "it was created or changed by another program meanwhile", ""),
    (error_answer(416, "InvalidRange"), "it ends before the requested bytes (", ""),
    (error_answer(501, "NotImplemented"), "the server does not support such requests (NotImplemented: ", ""),
    (error_answer(500, "InternalError"), "the server is busy, or failed (InternalError: it said)", "transient"),
    (error_answer(503, "SlowDown"), "the server is busy, or failed (SlowDown: it said)", "transient"),
    (error_answer(503, "ServiceUnavailable"), "the server is busy, or failed (", "transient"),
    (error_answer(429, "TooManyRequests"), "the server is busy, or failed (TooManyRequests: ", "transient"),
    (error_answer(502, "BadGateway"), "the server is busy, or failed (BadGateway: ", "transient"),
    (error_answer(409, "OperationAborted"), "another request is working on it (OperationAborted: ", "transient"),
    (error_answer(400, "RequestTimeout"), "the data sent did not arrive complete (", "transient"),
    (error_answer(400, "IncompleteBody"), "the data sent did not arrive complete (", "transient"),
    (error_answer(400, "BadDigest"), "the data sent did not arrive complete (", "transient"),
    (error_answer(400, "SomethingNew"), "SomethingNew: it said", ""),
    (error_answer(403, "QuotaExceeded", "a &lt; b &amp;&#34;"), 'QuotaExceeded: a < b &"', ""),
    (Answer(502, b"<html>bad gateway</html>"), "the server is busy, or failed (HTTP 502)", "transient"),
]


@pytest.mark.parametrize(
    ("answer", "reason", "kind", "act"),
    # a GET that is out of range may be of an empty object, whose size is asked for
    [(*each, act) for each in ANSWERS for act in BY_NAME],
    ids=lambda value: str(value)[:60],
)
def test_answers_with_a_body_are_explained(
    server: CannedServer, answer: Answer, reason: str, kind: str, act: str
) -> None:
    server.answer = answer
    shown = failure(opened(server.url), act)
    assert reason in str(shown)
    assert kind_of(shown) == kind


WITHOUT_BODY = [
    (404, "there is no bucket 'models'", "unusable"),  # neither an object nor a directory can be looked for
    (403, "access denied: the credentials are wrong, or lack the permission s3:GetObject (or s3:ListBucket, if", ""),
    (401, "the credentials are wrong (HTTP 401)", "unusable"),
    (400, "bad request, without a reason: perhaps expired credentials, or a wrong region", ""),
    (408, "the data sent did not arrive complete", "transient"),
    (409, "another request is working on it (HTTP 409)", "transient"),
    (412, "created or changed by another program meanwhile (HTTP 412)", ""),
    (429, "the server is busy, or failed (HTTP 429)", "transient"),
    (500, "the server is busy, or failed (HTTP 500)", "transient"),
    (501, "the server does not support such requests (HTTP 501)", ""),
    (503, "the server is busy, or failed (HTTP 503)", "transient"),
]


@pytest.mark.parametrize(("status", "reason", "kind"), WITHOUT_BODY)
@pytest.mark.parametrize("act", ["HEAD", "COPY"])
def test_answers_without_a_body_are_explained_by_their_status(
    server: CannedServer, status: int, reason: str, kind: str, act: str
) -> None:
    server.answer = Answer(status)
    shown = failure(opened(server.url), act)
    if act == "COPY" and status == 404:
        reason, kind = "no such file or directory", ""
    assert reason in str(shown)
    assert kind_of(shown) == kind


@pytest.mark.parametrize("act", ["HEAD", *BY_NAME[:-1]])
def test_a_redirect_to_no_address_is_explained(server: CannedServer, act: str) -> None:
    server.answer = error_answer(301, "PermanentRedirect")
    shown = failure(opened(server.url), act)
    assert str(shown).endswith(
        "the bucket 'models' is in another region or at another endpoint: set the region, or the endpoint"
    )
    assert isinstance(shown, UnusableStorageError)


def test_a_redirect_to_an_address_that_may_not_be_followed_is_explained(server: CannedServer) -> None:
    server.answer = Answer(307, headers={"Location": "http://127.0.0.1:1/"})
    shown = failure(opened(server.url), "PUT")
    assert "the bucket 'models' is in another region or at another endpoint (HTTP 307)" in str(shown)


def test_an_upload_that_the_client_has_repeated_is_explained(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(3, 0.001))
    server.answer = error_answer(503, "SlowDown")
    location = opened(server.url)
    output = location.store.create(PATH, UploadBuffers())
    output.write(b"x")
    with pytest.raises(StorageError) as caught, mapped_errors(location, "complete it"):
        output.finish()
    assert str(caught.value).endswith("the server is busy, or failed (SlowDown: it said)")
    assert caught.value.transient
    assert len(server.asked) == 3


def test_an_error_after_an_answer_has_begun_is_explained(server: CannedServer) -> None:
    failed = Answer(200, error_answer(500, "InternalError").body)
    server.answers = lambda path: OBJECT if path == "/models/a" else failed
    location = opened(server.url)
    with (
        pytest.raises(StorageError, match="busy, or failed \\(InternalError: it") as caught,
        mapped_errors(location, "copy it"),
    ):
        location.store.copy("models/a", "models/b")
    assert caught.value.transient


PERMISSIONS = [
    ("GET", "s3:GetObject (or s3:ListBucket, if it does not exist)", "obs:object:GetObject (or obs:bucket:ListBucket"),
    ("LIST", "s3:ListBucket", "obs:bucket:ListBucket"),
    ("FIND", "s3:ListBucket", "obs:bucket:ListBucket"),
    ("PUT", "s3:PutObject", "obs:object:PutObject"),
    ("DELETE", "s3:DeleteObject", "obs:object:DeleteObject"),
    ("UPLOADS", "s3:ListBucketMultipartUploads", "obs:bucket:ListBucketMultipartUploads"),
]


@pytest.mark.parametrize(("act", "of_s3", "of_obs"), PERMISSIONS)
def test_a_denied_request_names_the_permission_that_it_needs(
    server: CannedServer, act: str, of_s3: str, of_obs: str
) -> None:
    server.answer = error_answer(403, "AccessDenied")
    for protocol, permission in (("s3", of_s3), ("obs", of_obs)):
        shown = str(failure(opened(server.url, protocol), act))
        assert f"access denied: the credentials lack the permission {permission}" in shown


@pytest.mark.parametrize("act", BY_NAME)
def test_nothing_of_an_answer_is_repeated_but_its_code_and_message(server: CannedServer, act: str) -> None:
    server.answer = error_answer(
        403,
        "SignatureDoesNotMatch",
        "No match.  See https://host/?X-Amz-Signature=5167 and AWSAccessKeyId=AKIASECRET&amp;x-amz-security-token=7070",
        AWSAccessKeyId="AKIASECRET",
        StringToSign="AWS4-HMAC-SHA256 5167",
        SignatureProvided="5167",
    )
    shown = failure(opened(server.url), act)
    assert "No match. See https://host/" in str(shown)
    for secret in ("AKIASECRET", "5167", "7070"):
        assert secret not in "".join(format_exception(shown))


# ---- a missing bucket, and a missing object ----


def test_a_missing_object_in_a_bucket_is_not_taken_for_a_missing_bucket(server: CannedServer) -> None:
    empty = b"<ListBucketResult><Name>models</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
    location = opened(server.url)

    def answers(path: str) -> Answer:
        return Answer(200, empty) if "list-type" in path else Answer(404)

    server.answers = answers
    shown = failure(location, "HEAD")
    assert str(shown) == f"{location}: cannot do it: no such file or directory"
    assert isinstance(shown.__cause__, FileNotFoundError)


# ---- no answer ----


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that does something with each connection, which it keeps open as long as it is tried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                answer(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in kept:
            connection.close()


each_client = pytest.mark.parametrize("act", ["HEAD", "LIST", "GET", "PUT", "DELETE", "UPLOADS"])


@each_client
def test_a_refused_connection(act: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    shown = failure(opened(url), act)
    assert str(shown).endswith(f"{url} cannot be reached: the endpoint is wrong, or it is down")
    assert shown.transient


@each_client
def test_a_host_that_does_not_exist(act: str) -> None:
    shown = failure(opened("http://nowhere.invalid"), act)
    assert "http://nowhere.invalid cannot be reached: the endpoint is wrong, or it is down" in str(shown)


@each_client
def test_a_proxy_that_is_down_may_be_the_cause(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hunter2@127.0.0.1:1")
    shown = failure(opened("http://nowhere.invalid"), act)
    if act != "UPLOADS":
        assert "is down, or the proxy that the environment names" in str(shown)
    assert "hunter2" not in "".join(format_exception(shown))


@each_client
def test_no_answer_in_time(act: str) -> None:
    with listening(lambda _: None) as url:
        shown = failure(opened(url, config_kwargs={"read_timeout": 0.2}), act)
    assert str(shown).endswith(f"{url} did not answer in time")
    assert shown.transient


@each_client
def test_a_connection_that_ends_early(act: str) -> None:
    with listening(lambda connection: connection.shutdown(socket.SHUT_RDWR)) as url:
        shown = failure(opened(url), act)
    assert str(shown).endswith(f"{url} closed the connection")
    assert shown.transient


@pytest.mark.parametrize("act", ["LIST", "FIND"])
def test_an_answer_that_ends_early(server: CannedServer, act: str) -> None:
    server.answer = Answer(200, b"<ListBucketResult>", missing_bytes=10)
    shown = failure(opened(server.url), act)
    assert str(shown).endswith(f"{server.url} closed the connection")
    assert shown.transient


@pytest.mark.parametrize("act", ["LIST", "FIND", "PUT"])
def test_an_answer_that_no_such_server_gives(server: CannedServer, act: str) -> None:
    server.answer = Answer(200, b"<html>Please log in: hunter2")
    shown = failure(opened(server.url), act)
    assert str(shown).endswith(
        f"{server.url} answered with something else than such a storage does: is it the right endpoint?"
    )
    assert shown.transient


def test_the_whole_in_place_of_a_part(server: CannedServer) -> None:
    server.answer = Answer(200, b"0123456789abc", {"ETag": '"x"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT"})
    shown = failure(opened(server.url), "RANGE")
    assert "the server answers requests for parts of objects with the whole" in str(shown)


@each_client
def test_a_certificate_that_is_not_trusted(act: str, tmp_path: Path) -> None:
    with canned_server(Authority(tmp_path, "unknown").issue()) as server:
        for protocol, word in (("s3", "AWS_CA_BUNDLE"), ("obs", "client_kwargs.verify")):
            shown = failure(opened(server.url, protocol), act)
            assert str(shown).endswith(
                f"the certificate of {server.url} is not trusted: name a file with its authority as {word}"
            )
            assert isinstance(shown, UnusableStorageError)
    assert server.asked == []


@pytest.mark.parametrize("key", ["a//b", "a/../b", "a/./b", "/a", "a\x01b"])
def test_names_that_the_client_takes_for_others_are_refused(server: CannedServer, key: str) -> None:
    store, path = open_store(f"s3://models/{key}", KEYS | {"endpoint_url": server.url})
    location = Location(store, path)
    for act in (store.stat, store.list, store.find, store.remove, partial(store.put, data=b"x")):
        with pytest.raises(StorageError, match="cannot be used in object stores"), mapped_errors(location, "do it"):
            act(path)
    assert server.asked == []


@pytest.mark.parametrize(("key", "shown_key"), [("run//b", "run//b"), ("run//", "run//"), ("run/&#1;c", r"run/\u{1}c")])
@pytest.mark.parametrize("act", ["LIST", "FIND"])
def test_a_listed_name_that_the_client_does_not_take_is_named(
    server: CannedServer, act: str, key: str, shown_key: str
) -> None:
    described = f"<Key>{key}</Key><LastModified>2026-11-26T08:00:00Z</LastModified><Size>1</Size><ETag>x</ETag>"
    listing = f"<ListBucketResult><Contents>{described}</Contents></ListBucketResult>"
    server.answer = Answer(200, listing.encode(), {"Content-Type": "application/xml"})
    shown = failure(opened(server.url), act)
    assert f"it holds '{shown_key}', and names with empty parts" in str(shown)
    assert str(shown).endswith("cannot be used in object stores: rename or remove that, or name another directory")
    assert not shown.transient
