"""Ranges of objects: whole and of the expected version, or one clear error."""

from pathlib import Path

import pytest

from reshard.core.errors import CatalogError, StorageError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy, counting_retries
from reshard.core.storage.ranges import Scatter
from reshard.core.storage.reading import is_proven, open_source, read_bytes, read_parts
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import Location, parse_url
from tests.support import s3_proxy
from tests.support.http_wire import Head
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


def read(location: Location) -> bytes:
    return read_bytes(open_source(location), START, LENGTH)


@pytest.mark.parametrize("protocol", ["s3", "obs"])
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
    impatient = Location(*open_store(str(location), {"config_kwargs": {"read_timeout": 3}}))
    with counting_retries() as retries:
        assert read(impatient) == WANTED
    assert retries.value == 1


def test_an_object_that_was_replaced_is_not_read_any_further(location: Location, store: Store) -> None:
    source = open_source(location)
    assert read_bytes(source, 0, 5) == CONTENT[:5]
    client = s3_client(store.server.url)
    client.put_object(Bucket=BUCKET, Key=f"{store.prefix}/file.bin", Body=CONTENT[::-1])
    with pytest.raises(CatalogError, match=r"/file\.bin changed while it was being read \(it was 5000000-"):
        read_bytes(source, START, LENGTH)


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
    monkeypatch.setattr(s3_proxy, "_is_other_version", lambda head, answer: False)
    version = open_source(location).version
    client = s3_client(store.server.url)
    client.put_object(Bucket=BUCKET, Key=f"{store.prefix}/file.bin", Body=CONTENT[::-1])
    file = open_source(location, version)
    with pytest.raises(CatalogError, match=r"/file\.bin changed while it was being read \(it was 5000000-"):
        read_bytes(file, START, LENGTH)


def test_a_server_that_denies_the_version_that_it_shows_is_refused_by_name(location: Location, store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.CONDITION_FAILED, ("GetObject",)))
    message = r"/file\.bin: cannot read .* bytes at .*: the server denies that it has the version that it shows"
    with pytest.raises(StorageError, match=message):
        read(location)


@pytest.mark.parametrize("weak", [False, True])
def test_a_server_that_shows_no_version_is_refused_by_name(
    location: Location, monkeypatch: pytest.MonkeyPatch, weak: bool
) -> None:
    mended = s3_proxy._as_s3_would

    def without_etag(head: Head) -> Head:
        answer = mended(head)
        etag = {"etag": f"W/{answer.headers['etag']}"} if weak and "etag" in answer.headers else {}
        return Head(answer.first, {**answer.without("etag").headers, **etag})

    opened = open_source(location)
    monkeypatch.setattr(s3_proxy, "_as_s3_would", without_etag)
    monkeypatch.setattr(s3_proxy, "_is_other_version", lambda head, answer: False)
    message = r"/file\.bin: cannot read .*: the server shows no version \(ETag\) of what it sends"
    with pytest.raises(StorageError, match=message):
        open_source(location)
    with pytest.raises(StorageError, match=message):
        read_bytes(opened, START, LENGTH)


def test_a_server_that_answers_ranges_as_if_they_were_whole_is_refused_by_name(
    location: Location, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)  # past the proxy, which mends the status
    forget_connections()
    message = "the server answers requests for parts of objects with the whole: it cannot be read from"
    with counting_retries() as retries, pytest.raises(StorageError, match=message):
        read(parse_url(str(location)))
    assert retries.value == 0


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


def test_names_of_objects_are_sent_as_they_are(store: Store, tmp_path: Path, location: Location) -> None:
    (tmp_path / "other").write_bytes(CONTENT)
    for name in ("a b+c%20d.bin", "größe=1&x;y.bin", "{0}[1]~'.bin"):
        assert read(parse_url(store.add(tmp_path / "other", name))) == WANTED
