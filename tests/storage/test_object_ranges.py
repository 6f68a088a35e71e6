"""Ranges of objects are read by obstore, by s3fs where it has to be, and either way as one would expect of s3fs."""

import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from s3fs import S3FileSystem

from reshard.core.errors import CatalogError, StorageError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy, counting_retries
from reshard.core.storage.filesystems import open_filesystem
from reshard.core.storage.object_ranges import RefusedRequestError, Scatter, object_ranges
from reshard.core.storage.reading import is_proven, open_source, read_bytes, read_parts
from reshard.core.storage.urls import Location, parse_url
from tests.support.s3_client import s3_client
from tests.support.s3_server import S3Server
from tests.support.s3_traffic import Fault, Kind
from tests.support.stores import BUCKET, Store, content_of, forget_connections

CONTENT = content_of(5_000_000)
START, LENGTH = 1_234_567, 3_210_987
WANTED = CONTENT[START : START + LENGTH]
PASSING = (Kind.SLOW_DOWN, Kind.INTERNAL_ERROR, Kind.RESET, Kind.RESET_IN_BODY, Kind.SHORT_BODY, Kind.ANSWER_LOST)


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def location(store: Store, tmp_path: Path) -> Location:
    """An object in the store, which is opened anew."""
    (tmp_path / "content").write_bytes(CONTENT)
    return parse_url(store.add(tmp_path / "content", "file.bin"))


@pytest.fixture
def without_s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading with s3fs fails."""

    def fail(*_: object, **__: object) -> bytes:
        raise AssertionError("s3fs was asked")

    monkeypatch.setattr(S3FileSystem, "cat_file", fail)


def read(location: Location) -> bytes:
    return read_bytes(open_source(location), START, LENGTH)


@pytest.mark.parametrize("protocol", ["s3", "obs"])
@pytest.mark.usefixtures("without_s3fs")
def test_obstore_reads(location: Location) -> None:
    assert read(location) == WANTED
    assert open_source(location).read_many([(5, 7), (0, 1), (4_999_990, 10)]) == [
        CONTENT[5:12],
        CONTENT[:1],
        CONTENT[-10:],
    ]


@pytest.mark.parametrize("kind", PASSING)
def test_a_request_that_fails_once_is_repeated_and_counted_once(location: Location, store: Store, kind: Kind) -> None:
    store.proxy.set_faults(Fault(kind, ("GetObject",), most=1))
    with counting_retries() as retries:
        assert read(location) == WANTED
    assert retries.value == 1
    assert object_ranges(location.fs) is not None
    assert store.proxy.counts()["GetObject"] == 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Kind.ACCESS_DENIED, "access denied: the credentials lack the permission s3:GetObject"),
        (Kind.EXPIRED_TOKEN, r"the credentials have expired \(ExpiredToken"),
        (Kind.NO_SUCH_BUCKET, f"there is no bucket '{BUCKET}'"),
        (Kind.SLOW_DOWN, r"the server is busy, or failed \(SlowDown"),
    ],
)
def test_failures_are_explained_as_ever(location: Location, store: Store, kind: Kind, message: str) -> None:
    store.proxy.set_faults(Fault(kind, ("GetObject",)))
    with pytest.raises(StorageError, match=rf"/file\.bin: cannot read {LENGTH} bytes at {START}: {message}"):
        read(location)


def test_a_silent_server_is_not_waited_for_without_end(location: Location, store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.SILENCE, ("GetObject",), most=1))
    fs, path = open_filesystem(str(location), {"config_kwargs": {"read_timeout": 3}})
    with counting_retries() as retries:
        assert read(Location(fs, path)) == WANTED
    assert retries.value == 1


@pytest.mark.usefixtures("without_s3fs")
def test_an_object_that_was_replaced_is_not_read_any_further(location: Location, store: Store) -> None:
    source = open_source(location)
    assert read_bytes(source, 0, 5) == CONTENT[:5]
    client = s3_client(store.server.url)
    client.put_object(Bucket=BUCKET, Key=f"{store.prefix}/file.bin", Body=CONTENT[::-1])
    with pytest.raises(CatalogError, match=r"/file\.bin changed while it was being read \(it was 5000000-"):
        read_bytes(source, START, LENGTH)


@pytest.mark.usefixtures("without_s3fs")
def test_an_expected_object_is_read_without_being_looked_for(location: Location, store: Store) -> None:
    version = open_source(location).version
    store.proxy.forget()
    file = open_source(location, version)
    assert (file.size_bytes, read_bytes(file, START, LENGTH)) == (len(CONTENT), WANTED)
    assert is_proven(file)
    assert store.proxy.counts() == {"GetObject": 1}


def test_an_expected_object_that_was_replaced_is_not_read(location: Location, store: Store) -> None:
    version = open_source(location).version
    client = s3_client(store.server.url)
    client.put_object(Bucket=BUCKET, Key=f"{store.prefix}/file.bin", Body=CONTENT[::-1])
    file = open_source(location, version)
    with pytest.raises(CatalogError, match=r"/file\.bin changed while it was being read \(it was 5000000-"):
        read_bytes(file, START, LENGTH)


def test_an_object_that_was_replaced_on_a_server_without_conditions(
    location: Location, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.s3_proxy._is_other_version", lambda head, answer: False)
    version = open_source(location).version
    client = s3_client(store.server.url)
    client.put_object(Bucket=BUCKET, Key=f"{store.prefix}/file.bin", Body=CONTENT[::-1])
    file = open_source(location, version)
    with pytest.raises(CatalogError, match=r"/file\.bin changed while it was being read \(it was 5000000-"):
        read_bytes(file, START, LENGTH)


def test_s3fs_reads_an_expected_object_only_after_a_look(location: Location, store: Store) -> None:
    version = open_source(location).version
    client = s3_client(store.server.url)
    client.put_object(Bucket=BUCKET, Key=f"{store.prefix}/file.bin", Body=CONTENT[::-1])
    file = open_source(location, version)
    store.proxy.set_faults(Fault(Kind.RESET, ("GetObject",), most=1))  # what fails is repeated by s3fs
    with pytest.raises(CatalogError, match=r"/file\.bin changed while it was being read \(it was 5000000-"):
        read_bytes(file, START, LENGTH)


def test_what_s3fs_read_is_not_proven(location: Location, store: Store) -> None:
    file = open_source(location, open_source(location).version)
    store.proxy.set_faults(Fault(Kind.RESET, ("GetObject",), most=1))
    assert read_bytes(file, START, LENGTH) == WANTED
    assert not is_proven(file)


def test_a_server_that_takes_no_conditions_is_read_by_s3fs(location: Location, store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.CONDITION_FAILED, ("GetObject",), most=1))
    assert read(location) == WANTED
    assert object_ranges(location.fs) is None


def test_a_server_that_answers_ranges_as_if_they_were_whole_is_read_by_s3fs(
    location: Location, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)  # past the proxy, which mends the status
    forget_connections()
    again = parse_url(str(location))
    assert object_ranges(again.fs) is not None
    with counting_retries() as retries:
        assert read(again) == WANTED
    assert retries.value == 0
    assert object_ranges(again.fs) is None


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256"}},
        {"client_kwargs": {"verify": False}},
        {"client_kwargs": {"use_ssl": False}},
        {"config_kwargs": {"proxies": {"http": "http://127.0.0.1:9"}}},
        {"config_kwargs": {"signature_version": "s3"}},
        {"config_kwargs": {"s3": {"payload_signing_enabled": True}}},
        {"version_aware": True},
    ],
    ids=str,
)
def test_what_obstore_cannot_honour_is_for_s3fs(location: Location, options: dict[str, Any]) -> None:
    assert object_ranges(open_filesystem(str(location), options)[0]) is None


@pytest.mark.parametrize(
    "variables",
    [
        {"HTTPS_PROXY": "http://127.0.0.1:9"},
        {"all_proxy": "http://127.0.0.1:9"},
        {"AWS_CA_BUNDLE": "/etc/ssl/own.pem", "AWS_ENDPOINT_URL": "https://minio.example.invalid"},
        {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
    ],
    ids=str,
)
def test_so_are_settings_of_the_environment(
    store: Store, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert object_ranges(parse_url(store.url("file.bin")).fs) is None


CREDENTIALS = """
[training]
aws_access_key_id = {key}
aws_secret_access_key = {secret}
"""


@pytest.mark.usefixtures("without_s3fs")
@pytest.mark.parametrize("given", ["environment", "options", "profile"])
def test_keys_come_from_where_s3fs_has_them(
    location: Location, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    key, secret = store.server.access_key, store.server.secret_key
    if given != "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    options = {"key": key, "secret": secret} if given == "options" else {}
    if given == "profile":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        (tmp_path / "credentials").write_text(CREDENTIALS.format(key=key, secret=secret))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        options = {"profile": "training"}
    forget_connections()
    assert read(Location(*open_filesystem(str(location), options))) == WANTED


@pytest.mark.parametrize(
    ("url", "options", "host"),
    [
        (
            "obs://b-1/k",
            {"endpoint_url": "obs.cn-north-4.myhuaweicloud.com"},
            "https://b-1.obs.cn-north-4.myhuaweicloud.com/k",
        ),
        ("obs://b-1/k", {"endpoint_url": "http://10.0.0.1:81"}, "http://10.0.0.1:81/b-1/k"),
        ("s3://b-1/k", {"client_kwargs": {"region_name": "eu-west-3"}}, "https://s3.eu-west-3.amazonaws.com/b-1/k"),
        ("s3://b-1/k", {"endpoint_url": "https://minio.example.com:9000"}, "https://minio.example.com:9000/b-1/k"),
        (
            "s3://b-1/k",
            {"endpoint_url": "https://s.example.com", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            "https://b-1.s.example.com/k",
        ),
    ],
)
@pytest.mark.usefixtures("store")
def test_requests_go_to_the_host_that_s3fs_asks(
    url: str, options: dict[str, Any], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    reader = object_ranges(open_filesystem(url, {"key": "a", "secret": "b"} | options)[0])
    assert reader is not None
    assert obstore.sign(reader.store("b-1"), "GET", "k", timedelta(minutes=1)).startswith(host)


@pytest.mark.parametrize("more", [{}, {"use_listings_cache": False}])
def test_an_endpoint_for_s3_in_the_environment_is_not_for_obs(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://another.example.com")
    options = {"key": "a", "secret": "b", "endpoint_url": "http://10.0.0.1:81"} | more
    reader = object_ranges(open_filesystem("obs://b-1/k", options)[0])
    assert reader is not None
    assert obstore.sign(reader.store("b-1"), "GET", "k", timedelta(minutes=1)).startswith("http://10.0.0.1:81/b-1/k")


def test_bytes_of_one_range_arrive_in_several_buffers(location: Location) -> None:
    parts = [memoryview(bytearray(length)) for length in (3, 0, 2, 4)]
    read_parts(open_source(location), 1, parts)
    assert b"".join(parts) == CONTENT[1:10]


def test_pieces_of_an_answer_need_not_end_where_buffers_do() -> None:
    parts = [memoryview(bytearray(length)) for length in (3, 0, 2, 4)]
    scatter = Scatter(parts)
    for piece in (b"ab", b"cdef", b"", b"ghi"):
        scatter.write(memoryview(piece))
    assert (b"".join(parts), scatter.count) == (b"abcdefghi", 9)
    with pytest.raises(ConnectionError, match="long read: got more bytes than requested"):
        scatter.write(memoryview(b"j"))


@pytest.mark.usefixtures("without_s3fs")
def test_names_of_objects_are_sent_as_they_are(store: Store, tmp_path: Path, location: Location) -> None:
    (tmp_path / "other").write_bytes(CONTENT)
    for name in ("a b+c%20d.bin", "größe=1&x;y.bin", "{0}[1]~'.bin"):
        assert read(parse_url(store.add(tmp_path / "other", name))) == WANTED


def test_secrets_are_in_no_text(location: Location, store: Store) -> None:
    """Not in errors that are logged with their causes either."""
    secret = "not-the-one-that-it-has-to-be"
    fs, path = open_filesystem(str(location), {"key": store.server.access_key, "secret": secret, "token": secret[::-1]})
    reader = object_ranges(fs)
    assert reader is not None
    with pytest.raises(RefusedRequestError) as refused:
        reader.read(BUCKET, path.removeprefix(f"{BUCKET}/"), 0, [memoryview(bytearray(5))], "")
    text = "".join(traceback.format_exception(refused.value))
    assert "status code: 403" in text
    assert not [word for word in (secret, secret[::-1], "Signature=") if word in text]
