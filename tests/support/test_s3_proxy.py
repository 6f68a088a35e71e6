import functools
import hashlib
import http.client
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions
import obstore
import pytest
from obstore.store import S3Store

from tests.support.patience import PATIENCE_SECONDS
from tests.support.s3_client import code_of, s3_client
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import S3Server, s3_server
from tests.support.s3_traffic import Exchange, Fault, Faults, Kind, parse_call

BODY = bytes(range(256)) * 40
CASES = {
    "SLOW_DOWN": ("SlowDown", "503"),
    "INTERNAL_ERROR": ("InternalError", "500"),
    "ACCESS_DENIED": ("AccessDenied", "403"),
    "EXPIRED_TOKEN": ("ExpiredToken", "400"),
    "NO_SUCH_BUCKET": ("NoSuchBucket", "404"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "root", ("bucket",)) as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(server) as running:
        yield running


@pytest.fixture
def client(proxy: S3Proxy) -> Any:
    return s3_client(proxy.url)


direct = functools.cache(s3_client)


def put(server: S3Server, key: str, body: bytes = BODY) -> str:
    """Stores an object past the proxy; its etag."""
    return str(direct(server.url).put_object(Bucket="bucket", Key=key, Body=body)["ETag"])


def get(client: Any, key: str, **options: object) -> bytes:
    body: bytes = client.get_object(Bucket="bucket", Key=key, **options)["Body"].read()
    return body


@pytest.mark.parametrize(
    ("request_line", "headers", "want"),
    [
        ("GET /b/k/l?versionId=1", {}, ("GetObject", "b", "k/l")),
        ("HEAD /b/k", {}, ("HeadObject", "b", "k")),
        ("PUT /b/a%20b%2Bc", {}, ("PutObject", "b", "a b+c")),
        ("PUT /b/k", {"x-amz-copy-source": "b/l"}, ("CopyObject", "b", "k")),
        ("PUT /b/k?partNumber=2&uploadId=u", {}, ("UploadPart", "b", "k")),
        ("PUT /b/k?partNumber=2&uploadId=u", {"x-amz-copy-source": "b/l"}, ("UploadPartCopy", "b", "k")),
        ("POST /b/k?uploads", {}, ("CreateMultipartUpload", "b", "k")),
        ("POST /b/k?uploadId=u", {}, ("CompleteMultipartUpload", "b", "k")),
        ("DELETE /b/k?uploadId=u", {}, ("AbortMultipartUpload", "b", "k")),
        ("GET /b/k?uploadId=u", {}, ("ListParts", "b", "k")),
        ("DELETE /b/k", {}, ("DeleteObject", "b", "k")),
        ("GET /b?list-type=2&prefix=a", {}, ("ListObjectsV2", "b", "")),
        ("GET /b/?prefix=a", {}, ("ListObjects", "b", "")),
        ("GET /b?uploads", {}, ("ListMultipartUploads", "b", "")),
        ("POST /b?delete", {}, ("DeleteObjects", "b", "")),
        ("HEAD /b", {}, ("HeadBucket", "b", "")),
        ("GET /", {}, ("ListBuckets", "", "")),
        ("PATCH /b/k", {}, ("PATCH", "b", "k")),
    ],
)
def test_operations_have_the_names_that_s3_gives_them(
    request_line: str, headers: dict[str, str], want: tuple[str, str, str]
) -> None:
    method, target = request_line.split(" ")
    call = parse_call(method, target, headers, virtual_hosts=False)
    assert (call.operation, call.bucket, call.key) == want


def test_requests_are_counted_with_what_they_ask_for(proxy: S3Proxy, client: Any) -> None:
    client.put_object(Bucket="bucket", Key="dir/a b", Body=BODY)
    assert get(client, "dir/a b", Range="bytes=100-299") == BODY[100:300]
    client.head_object(Bucket="bucket", Key="dir/a b")
    assert code_of(lambda: get(client, "missing")) == "NoSuchKey"
    client.copy_object(Bucket="bucket", Key="copy", CopySource="bucket/dir/a b")
    listed = client.list_objects_v2(Bucket="bucket", Prefix="dir/")
    assert [each["Key"] for each in listed["Contents"]] == ["dir/a b"]
    client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "copy"}]})
    calls = [
        (each.call.operation, each.call.key, each.call.range, each.status, each.received_bytes)
        for each in proxy.exchanges()
        if each.call.operation != "DeleteObjects"
    ]
    assert calls == [
        ("PutObject", "dir/a b", "", 200, len(BODY)),
        ("GetObject", "dir/a b", "bytes=100-299", 206, 0),
        ("HeadObject", "dir/a b", "", 200, 0),
        ("GetObject", "missing", "", 404, 0),
        ("CopyObject", "copy", "", 200, 0),
        ("ListObjectsV2", "", "", 200, 0),
    ]
    assert [each.sent_bytes for each in proxy.exchanges()][:3] == [0, 200, 0]
    assert {each.call.bucket for each in proxy.exchanges()} == {"bucket"}
    assert all(each.began <= each.ended and each.fault is None for each in proxy.exchanges())
    assert proxy.counts()["GetObject"] == 2
    proxy.forget()
    assert not proxy.counts()


def test_repetitions_are_told_from_other_requests(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k")
    for span in ("bytes=0-9", "bytes=10-19", "bytes=0-9"):
        get(client, "k", Range=span)
    assert [(each.number, each.attempt) for each in proxy.exchanges()] == [(1, 1), (2, 1), (3, 2)]


def test_an_upload_in_parts_and_its_ranges_pass_unchanged(proxy: S3Proxy, client: Any) -> None:
    part_bytes, count = 5 * 2**20, 4  # the smallest that S3 takes
    parts = [os.urandom(2**20) * 5 for _ in range(count)]
    upload: dict[str, Any] = {"Bucket": "bucket", "Key": "large"}
    upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]

    def upload_part(number: int) -> dict[str, object]:
        etag = client.upload_part(**upload, PartNumber=number, Body=parts[number - 1])["ETag"]
        return {"PartNumber": number, "ETag": etag}

    with ThreadPoolExecutor(16) as threads:
        uploaded = list(threads.map(upload_part, range(1, count + 1)))
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": uploaded})
        read_bytes = 3 * 2**20
        spans = [f"bytes={start}-{start + read_bytes - 1}" for start in range(0, count * part_bytes, read_bytes)]
        read = list(threads.map(lambda span: get(client, "large", Range=span), spans))
    want = hashlib.sha256(b"".join(parts)).digest()
    assert hashlib.sha256(b"".join(read)).digest() == want
    done = proxy.exchanges()
    assert sum(each.received_bytes for each in done if each.call.operation == "UploadPart") == count * part_bytes
    assert sorted(each.call.part for each in done if each.call.operation == "UploadPart") == list(range(1, count + 1))
    assert sum(each.sent_bytes for each in done if each.call.operation == "GetObject") == count * part_bytes


def obstore_client(url: str, bucket: str, server: S3Server, *, is_virtual: bool = False) -> S3Store:
    return S3Store(
        bucket,
        endpoint=url,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=is_virtual,
        client_options={"allow_http": True},
    )


def test_obstore_through_it(proxy: S3Proxy, server: S3Server) -> None:
    put(server, "fs/k")
    client = obstore_client(proxy.url, "bucket", server)
    assert obstore.get_range(client, "fs/k", start=0, end=len(BODY)) == BODY
    assert [each["path"] for each in obstore.list(client, "fs").collect()] == ["fs/k"]
    assert {"GetObject", "ListObjectsV2"} <= set(proxy.counts())


def test_listings_without_a_told_length_pass(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    for number in range(40):
        put(server, f"many/{number:02}", b"")
    assert len(client.list_objects_v2(Bucket="bucket", Prefix="many/")["Contents"]) == 40


def test_latency_is_there_and_not_one_after_the_other(proxy: S3Proxy, server: S3Server) -> None:
    put(server, "k")
    proxy.latency_seconds = 0.2
    client = s3_client(proxy.url)
    with ThreadPoolExecutor(20) as threads:
        assert set(threads.map(lambda _: get(client, "k"), range(20))) == {BODY}
    asked = proxy.exchanges()
    waits = [each.ended - each.began for each in asked]
    assert min(waits) >= 0.2
    assert sum(waits) > max(each.ended for each in asked) - min(each.began for each in asked), "they overlap"


@pytest.mark.parametrize("name", CASES)
def test_an_error_as_s3_words_it(proxy: S3Proxy, client: Any, server: S3Server, name: str) -> None:
    put(server, "k")
    proxy.set_faults(Fault(Kind[name]))
    code, status = CASES[name]
    assert code_of(lambda: get(client, "k")) == code
    assert code_of(lambda: client.head_object(Bucket="bucket", Key="k")) == status
    assert code_of(lambda: client.put_object(Bucket="bucket", Key="not-there", Body=BODY)) == code
    # botocore takes an empty 400 for a wrong region, and asks the bucket
    assert [each.fault for each in proxy.exchanges() if each.call.key] == [Kind[name]] * 3
    assert {str(each.status) for each in proxy.exchanges()} == {status}
    proxy.set_faults()
    assert get(client, "k") == BODY
    assert not server.path("bucket", "not-there").exists()


def test_an_error_after_ok(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k")
    proxy.set_faults(Fault(Kind.ERROR_AFTER_OK, operations=("CopyObject",)))
    assert code_of(lambda: client.copy_object(Bucket="bucket", Key="k2", CopySource="bucket/k")) == "InternalError"
    assert [each.status for each in proxy.exchanges()] == [200]


@pytest.mark.parametrize("operation", ["GetObject", "PutObject"])
def test_a_reset_instead_of_an_answer(proxy: S3Proxy, client: Any, server: S3Server, operation: str) -> None:
    put(server, "k")
    requests: dict[str, Callable[[], object]] = {
        "GetObject": lambda: get(client, "k"),
        "PutObject": lambda: client.put_object(Bucket="bucket", Key="reset", Body=BODY),
    }
    proxy.set_faults(Fault(Kind.RESET, most=1))
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        requests[operation]()
    assert not server.path("bucket", "reset").exists()
    requests[operation]()
    assert [(each.status, each.fault) for each in proxy.exchanges()] == [(0, Kind.RESET), (200, None)]


def test_a_lost_answer_to_what_was_carried_out(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    proxy.set_faults(Fault(Kind.ANSWER_LOST))
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        client.put_object(Bucket="bucket", Key="lost", Body=BODY)
    assert server.path("bucket", "lost").read_bytes() == BODY
    assert [(each.status, each.received_bytes) for each in proxy.exchanges()] == [(0, len(BODY))]


@contextmanager
def raw_get(url: str) -> Iterator[http.client.HTTPResponse]:
    """An answer as it comes, past all that botocore does about it."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}")
        yield connection.getresponse()


def test_an_end_in_the_middle_of_a_body(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k")
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    proxy.set_faults(Fault(Kind.SHORT_BODY))
    with raw_get(url) as answer:
        assert answer.status == 200
        with pytest.raises(http.client.IncompleteRead) as caught:
            answer.read()
    assert caught.value.partial == BODY[: len(BODY) // 2]
    proxy.set_faults(Fault(Kind.RESET_IN_BODY))
    with raw_get(url) as answer:
        assert answer.status == 200
        with pytest.raises(ConnectionResetError):
            answer.read()
    assert [each.sent_bytes for each in proxy.exchanges()] == [len(BODY) // 2] * 2


@pytest.mark.parametrize("kind", [Kind.SHORT_BODY, Kind.RESET_IN_BODY])
def test_an_answer_without_a_body_is_lost_whole(proxy: S3Proxy, client: Any, server: S3Server, kind: Kind) -> None:
    put(server, "k")
    proxy.set_faults(Fault(kind))
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        client.head_object(Bucket="bucket", Key="k")
    assert [each.status for each in proxy.exchanges()] == [0]


def test_silence(proxy: S3Proxy, server: S3Server) -> None:
    put(server, "k")
    proxy.set_faults(Fault(Kind.SILENCE))
    client = s3_client(proxy.url, read_timeout=0.2)
    with pytest.raises(botocore.exceptions.ReadTimeoutError):
        get(client, "k")
    # it is over as soon as the client has given up
    assert [each.status for each in proxy.exchanges()] == [0]


def test_silence_that_ends(proxy: S3Proxy, client: Any) -> None:
    proxy.set_faults(Fault(Kind.SILENCE, seconds=0.1))
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        get(client, "k")


def exchanges() -> list[Exchange]:
    return [
        Exchange(parse_call("GET", f"/bucket/{key}", {}, virtual_hosts=False), 1, attempt, 0.0)
        for key in range(100)
        for attempt in (1, 2)
    ]


def hits(faults: Faults, asked: list[Exchange]) -> list[tuple[str, int]]:
    return [(each.call.key, each.attempt) for each in asked if faults.strike(each)]


def test_chance_hits_the_same_requests_in_any_order() -> None:
    rule = Fault(Kind.RESET, probability=0.3, seed=1)
    hit = hits(Faults((rule,)), exchanges())
    assert 30 < len(hit) < 90
    assert sorted(hits(Faults((rule,)), exchanges()[::-1])) == sorted(hit)
    assert hits(Faults((Fault(Kind.RESET, probability=0.3, seed=2),)), exchanges()) != hit
    # a repetition has a chance of its own
    assert {key for key, attempt in hit if attempt == 1} != {key for key, attempt in hit if attempt == 2}


def test_rules_choose_their_requests(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k")
    proxy.set_faults(
        Fault(Kind.SLOW_DOWN, operations=("GetObject",), applies=lambda each: each.number == 2),
        Fault(Kind.ACCESS_DENIED, applies=lambda each: each.call.key == "other", most=1),
    )
    keys = ("k", "k", "k", "other", "other")
    assert [code_of(lambda key=key: get(client, key)) for key in keys] == [  # type: ignore[misc]
        *("none", "SlowDown", "none"),
        *("AccessDenied", "NoSuchKey"),
    ]


def test_something_can_be_done_before_a_request(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k")

    def replace(each: Exchange) -> None:
        if each.number == 2:
            put(server, "k", b"replaced")

    proxy.before = replace
    assert [get(client, "k") for _ in range(3)] == [BODY, b"replaced", b"replaced"]


def test_if_match_is_heeded(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    etag = put(server, "k")
    assert get(client, "k", IfMatch=etag, Range="bytes=0-9") == BODY[:10]
    put(server, "k", b"replaced by something else")
    assert code_of(lambda: get(client, "k", IfMatch=etag)) == "PreconditionFailed"
    assert code_of(lambda: get(client, "k", IfMatch=etag, Range="bytes=0-9")) == "PreconditionFailed"
    assert code_of(lambda: client.head_object(Bucket="bucket", Key="k", IfMatch=etag)) == "412"
    assert code_of(lambda: get(client, "missing", IfMatch=etag)) == "NoSuchKey"
    assert get(client, "k") == b"replaced by something else"


def test_an_upload_that_asks_first(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "asked"}))
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(
            f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.path("bucket", "asked").read_bytes() == BODY
    # botocore asks for what it reads from a file
    client.put_object(Bucket="bucket", Key="asked", Body=io.BytesIO(BODY * 200))
    assert server.path("bucket", "asked").read_bytes() == BODY * 200


def test_an_upload_in_chunks(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "chunks"}))
    with closing(http.client.HTTPConnection(url.hostname or "", url.port)) as connection:
        # S3 requires the length; the point is that the connection can be used afterwards
        for body in (iter([BODY, BODY]), BODY):
            connection.request("PUT", f"{url.path}?{url.query}", body=body)
            answer = connection.getresponse()
            answer.read()
    assert [(each.status, each.received_bytes) for each in proxy.exchanges()] == [
        (411, 2 * len(BODY)),
        (200, len(BODY)),
    ]


def test_an_answer_that_comes_before_the_upload_is_complete(proxy: S3Proxy, client: Any) -> None:
    body = bytes(32 * 2**20)
    assert code_of(lambda: client.put_object(Bucket="no-such-bucket", Key="k", Body=body)) == "NoSuchBucket"


def test_a_client_that_goes_away_disturbs_nobody(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k", bytes(32 * 2**20))
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    with raw_get(url) as answer:
        answer.read(1000)
    [first] = proxy.exchanges()
    assert first.sent_bytes < 32 * 2**20
    assert get(client, "k") == bytes(32 * 2**20)


def test_a_server_that_is_gone_is_a_reset(tmp_path: Any) -> None:
    with s3_server(tmp_path / "root", ("bucket",)) as server, s3_proxy(server) as proxy:
        client = s3_client(proxy.url)
        client.head_bucket(Bucket="bucket")
    with s3_proxy(server) as proxy, pytest.raises(botocore.exceptions.ConnectionClosedError):
        s3_client(proxy.url).head_bucket(Bucket="bucket")


def test_hundreds_of_connections(proxy: S3Proxy, client: Any, server: S3Server) -> None:
    put(server, "k")
    url = urlsplit(client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"}))
    all_there = threading.Barrier(300, timeout=PATIENCE_SECONDS)
    proxy.before = lambda exchange: all_there.wait()
    connections = [http.client.HTTPConnection(url.hostname or "", url.port) for _ in range(300)]
    for connection in connections:
        connection.request("GET", f"{url.path}?{url.query}")
    for connection in connections:
        with connection.getresponse() as answer:
            assert answer.read() == BODY
        connection.close()


def test_hosts_of_buckets_as_a_forward_proxy(tmp_path: Any) -> None:
    with (
        s3_server(tmp_path / "root", ("first", "second"), virtual_hosts=True) as server,
        s3_proxy(server) as proxy,
    ):
        client = s3_client(
            "http://obs.region-1.example.com", proxies={"http": proxy.url}, s3={"addressing_style": "virtual"}
        )
        client.put_object(Bucket="first", Key="a b/c", Body=BODY)
        client.copy_object(Bucket="second", Key="copy", CopySource="first/a b/c")
        assert client.get_object(Bucket="second", Key="copy")["Body"].read() == BODY
        assert code_of(lambda: client.list_objects_v2(Bucket="third")) == "NoSuchBucket"
        calls = [(each.call.host, each.call.operation, each.call.bucket, each.call.key) for each in proxy.exchanges()]
    assert calls == [
        ("first.obs.region-1.example.com", "PutObject", "first", "a b/c"),
        ("second.obs.region-1.example.com", "CopyObject", "second", "copy"),
        ("second.obs.region-1.example.com", "GetObject", "second", "copy"),
        ("third.obs.region-1.example.com", "ListObjectsV2", "third", ""),
    ]


def test_obstore_finds_it_as_a_forward_proxy(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        s3_server(tmp_path / "root", ("first",), virtual_hosts=True) as server,
        s3_proxy(server) as proxy,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        put_there = s3_client("http://obs.example.com", s3={"addressing_style": "virtual"})
        put_there.put_object(Bucket="first", Key="k", Body=BODY)
        client = obstore_client("http://first.obs.example.com", "first", server, is_virtual=True)
        assert obstore.get(client, "k").bytes() == BODY
        assert {each.call.host for each in proxy.exchanges()} == {"first.obs.example.com"}
