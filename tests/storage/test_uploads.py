"""Files that are sent to an object store: the object is there whole or not at all, and no part of it is left behind."""

import queue
import re
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.errors import StorageError, TargetError
from reshard.core.runtime import retry
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.progress import reporting_to
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.copying import copy_file
from reshard.core.storage.objects import aws
from reshard.core.storage.objects.s3 import S3Service
from reshard.core.storage.stores import open_store
from reshard.core.storage.uploads import abort_uploads
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import claimed_while
from reshard.core.storage.writing import write_file
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import whole_layout
from tests.support.checkpoints import case, read_tree
from tests.support.notes import Notes
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.s3_client import s3_client
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import S3Server
from tests.support.s3_traffic import Exchange, Fault, Kind
from tests.support.stores import BUCKET, Store, content_of, forget_connections, of_operation, stored, unfinished_uploads

PROTOCOLS = ["s3", pytest.param("obs", marks=pytest.mark.slow)]
PART = 2**18
"""S3 wants 5 MiB at least, but for the last; this server takes what comes, and small ones are quick."""
PARTS = UploadBuffers(PART, ahead=1)
S3_PART = 5 * 2**20
MULTIPART = ("CreateMultipartUpload", "CompleteMultipartUpload")
ANSWERS = (Kind.SLOW_DOWN, Kind.INTERNAL_ERROR)
LAST_PIECE_BYTES = 1_000_001


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))
    monkeypatch.setattr(retry, "WORK", RetryPolicy(retry.WORK.attempts, 0.001))


def send(store: Store, content: bytes, buffers: UploadBuffers = PARTS, piece_bytes: int = 300_000) -> None:
    """Writes it as `file.bin`, in pieces whose buffer is used again at once."""
    buffer = bytearray(piece_bytes)
    with write_file(parse_url(store.url("file.bin")), buffers) as file:
        for start in range(0, len(content), piece_bytes):
            piece = content[start : start + piece_bytes]
            buffer[: len(piece)] = piece
            file.write(memoryview(buffer)[: len(piece)])


def begin_to_send(store: Store, content: bytes) -> None:
    """The same, but something else goes wrong before the end."""
    with write_file(parse_url(store.url("file.bin")), PARTS) as file:
        file.write(content)
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        pytest.param(0, [], id="empty"),
        pytest.param(1, [], id="one byte"),
        pytest.param(S3_PART - 1, [], id="nearly a part"),
        pytest.param(S3_PART, [], id="a part"),
        pytest.param(S3_PART + 1, [S3_PART, 1], id="a byte more"),
        pytest.param(2 * S3_PART, [S3_PART, S3_PART], id="two parts"),
        pytest.param(3 * S3_PART + LAST_PIECE_BYTES, [S3_PART, S3_PART, S3_PART, LAST_PIECE_BYTES], id="several parts"),
    ],
)
def test_what_is_sent_is_there(store: Store, size: int, parts: list[int]) -> None:
    content = content_of(size)
    send(store, content, UploadBuffers(S3_PART, ahead=2))
    assert stored(store) == content
    assert unfinished_uploads(store) == []
    if not parts:
        assert store.proxy.counts() == {"PutObject": 1}
        return
    assert store.proxy.counts() == {"UploadPart": len(parts), **dict.fromkeys(MULTIPART, 1)}
    sent = sorted(of_operation(store, "UploadPart"), key=lambda each: each.call.part)
    assert [(each.call.part, each.received_bytes) for each in sent] == list(enumerate(parts, 1))


@pytest.mark.parametrize("ahead", [1, 4])
def test_parts_are_under_way_at_once(store: Store, ahead: int) -> None:
    content = content_of(6 * PART)
    store.proxy.latency_seconds = 0.2
    send(store, content, UploadBuffers(PART, ahead))
    store.proxy.latency_seconds = 0.0
    assert stored(store) == content
    assert most_at_once(of_operation(store, "UploadPart")) == ahead


@pytest.mark.parametrize("ahead", [1, 4])
def test_no_more_is_taken_than_the_budget_has_memory_for(store: Store, ahead: int) -> None:
    """Of each file `ahead` parts are being sent, and one is being filled."""
    go_on, written = threading.Event(), queue.SimpleQueue[int]()
    store.proxy.before = lambda exchange: (
        go_on.wait(PATIENCE_SECONDS) if exchange.call.operation == "UploadPart" else None
    )

    def write() -> None:
        with write_file(parse_url(store.url("file.bin")), UploadBuffers(PART, ahead)) as file:
            for number in range(3 * ahead + 9):
                file.write(bytes(PART))
                written.put(number)

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: written.qsize() == ahead + 1, "fewer parts are taken")
    time.sleep(0.3)
    assert written.qsize() == ahead + 1
    go_on.set()
    writer.join()
    assert stored(store) == bytes(PART * (3 * ahead + 9))


def most_at_once(exchanges: list[Exchange]) -> int:
    """How many of them there were at one moment; one that ends as another begins is before it."""
    moments = sorted([(each.began, 1) for each in exchanges] + [(each.ended, -1) for each in exchanges])
    return int(max(np.cumsum([change for _, change in moments])))


@pytest.mark.parametrize("size", [100, PART + 100, 4 * PART])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_fails_while_it_is_written_leaves_nothing(store: Store, size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        begin_to_send(store, content_of(size))
    assert stored(store) is None
    assert unfinished_uploads(store) == []
    counts = store.proxy.counts()
    assert counts["AbortMultipartUpload"] == counts["CreateMultipartUpload"] == (size > PART)


def test_a_former_object_stays_when_its_successor_fails(store: Store) -> None:
    send(store, b"former")
    with pytest.raises(ZeroDivisionError):
        begin_to_send(store, content_of(2 * PART))
    assert stored(store) == b"former"


@pytest.mark.parametrize("kind", [*ANSWERS, Kind.RESET, Kind.ANSWER_LOST])
@pytest.mark.parametrize("operation", ["PutObject", "UploadPart", "CreateMultipartUpload"])
def test_a_request_that_fails_once_is_made_again(store: Store, operation: str, kind: Kind) -> None:
    content = content_of(100 if operation == "PutObject" else 2 * PART + 1)
    store.proxy.set_faults(Fault(kind, (operation,), lambda exchange: exchange.call.part in (0, 1), most=1))
    send(store, content)
    assert stored(store) == content
    # an upload whose beginning was carried out unheard is left to the next run
    assert len(unfinished_uploads(store)) == (operation == "CreateMultipartUpload" and kind is Kind.ANSWER_LOST)
    made = [each for each in of_operation(store, operation) if each.call.part in (0, 1)]
    assert [each.fault for each in made] == [kind, None]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_part_that_fails_for_good(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.ACCESS_DENIED, ("UploadPart",), lambda exchange: exchange.call.part == 2))
    with pytest.raises(StorageError) as caught:
        send(store, content_of(6 * PART))
    url = store.url("file.bin")
    permission = {"s3": "s3:PutObject", "obs": "obs:object:PutObject"}[store.protocol]
    denied = f"access denied: the credentials lack the permission {permission}"
    assert re.fullmatch(f"{url}: cannot (write 300000 bytes|complete it): {denied}", str(caught.value))
    assert (stored(store), unfinished_uploads(store)) == (None, [])
    assert [each.call.part for each in of_operation(store, "UploadPart")].count(2) == 1


def test_a_part_may_take_longer_to_send_than_an_answer_to_begin(store: Store) -> None:
    """The client counts the time in which it sends as time in which no answer comes."""
    store.proxy.before = lambda exchange: time.sleep(1.5) if exchange.call.operation == "UploadPart" else None
    file = Location(*open_store(store.url("file.bin"), {"config_kwargs": {"read_timeout": 0.5}}))
    content = content_of(PART + 1)
    with write_file(file, PARTS) as output:
        output.write(content)
    store.proxy.before = lambda exchange: None
    assert stored(store) == content
    assert store.proxy.counts()["UploadPart"] == 2


def test_a_part_that_fails_too_often(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.SLOW_DOWN, ("UploadPart",), lambda exchange: exchange.call.part == 1))
    with pytest.raises(StorageError, match="cannot complete it: the server is busy, or failed") as caught:
        send(store, content_of(2 * PART))
    assert caught.value.transient
    assert (stored(store), unfinished_uploads(store)) == (None, [])
    assert [each.call.part for each in of_operation(store, "UploadPart")].count(1) == retry.REQUESTS.attempts


def test_an_upload_whose_beginning_was_not_answered_is_left_to_the_next_run(store: Store) -> None:
    """The client begins another one, and says nothing of it."""
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CreateMultipartUpload",), most=2))
    content = content_of(PART + 1)
    send(store, content)
    assert (stored(store), unfinished_uploads(store)) == (content, [f"{store.prefix}/file.bin"] * 2)
    file = parse_url(store.url("file.bin"))
    assert abort_uploads(file.parent, [file]) == 2
    assert (stored(store), unfinished_uploads(store)) == (content, [])


def test_nor_is_it_left_when_none_is_answered(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CreateMultipartUpload",)))
    with pytest.raises(StorageError, match="cannot (write 262145 bytes|complete it): .* closed the connection"):
        send(store, content_of(PART + 1))
    assert store.proxy.counts()["CreateMultipartUpload"] == retry.REQUESTS.attempts
    assert (stored(store), unfinished_uploads(store)) == (None, [])


def test_an_upload_that_cannot_be_aborted_is_told_beside_the_failure(store: Store) -> None:
    store.proxy.set_faults(
        Fault(Kind.ACCESS_DENIED, ("UploadPart",)),
        Fault(Kind.INTERNAL_ERROR, ("AbortMultipartUpload",)),
    )
    notes = Notes()
    with reporting_to(notes), pytest.raises(StorageError, match="cannot complete it: "):
        send(store, content_of(PART + 1))
    [note] = notes.notes
    assert note.startswith(f"an unfinished file for {store.url('file.bin')} could not be removed: ")
    assert "cannot give it up: " in note


def test_a_failure_that_was_told_is_not_told_again(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.ACCESS_DENIED, ("UploadPart",)))
    notes = Notes()
    with reporting_to(notes), pytest.raises(StorageError):
        send(store, content_of(PART + 1))
    assert notes.notes == []


def test_who_has_lost_the_claim_completes_nothing_and_aborts_no_other_upload(store: Store) -> None:
    client = s3_client(store.server.url)
    of_successor = {"Bucket": BUCKET, "Key": f"{store.prefix}/file.bin"}
    lost = threading.Event()

    def check() -> None:
        if lost.is_set():
            raise TargetError("another run has taken over")

    def lose(exchange: Exchange) -> None:
        if exchange.call.part == 2:
            client.create_multipart_upload(**of_successor)
            lost.set()

    store.proxy.before = lose
    with claimed_while(check), pytest.raises(TargetError, match="another run has taken over"):
        send(store, content_of(3 * PART))
    assert stored(store) is None
    assert {each.call.part for each in of_operation(store, "UploadPart")} == {1, 2}
    assert unfinished_uploads(store) == [of_successor["Key"]]
    assert store.proxy.counts()["AbortMultipartUpload"] == 1


def test_a_neighbour_whose_key_begins_alike_keeps_its_upload(store: Store) -> None:
    client = s3_client(store.server.url)
    neighbour = {"Bucket": BUCKET, "Key": f"{store.prefix}/file.bin.other"}
    upload = client.create_multipart_upload(**neighbour)["UploadId"]
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CreateMultipartUpload",)))
    with pytest.raises(StorageError):
        send(store, content_of(PART + 1))
    assert unfinished_uploads(store) == [neighbour["Key"]]
    client.abort_multipart_upload(**neighbour, UploadId=upload)


def test_uploads_are_found_in_a_bucket_that_is_the_directory_itself(store: Store) -> None:
    client = s3_client(store.server.url)
    keys = [f"{store.prefix}/{name}" for name in ("one.bin", "other.bin")]
    for key in keys:
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    bucket = parse_url(f"s3://{BUCKET}")
    assert abort_uploads(bucket, [bucket.child(*keys[0].split("/"))]) == 1
    assert unfinished_uploads(store) == keys[1:]
    assert abort_uploads(bucket, [bucket.child(*keys[1].split("/"))]) == 1


def test_a_completion_that_is_not_answered_may_be_tried_with_the_whole_file_again(store: Store) -> None:
    """The server says that there is no such upload: whether it was completed, or given up by others, it does not."""
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CompleteMultipartUpload",), most=1))
    content = content_of(PART + 1)
    with pytest.raises(StorageError, match=r"its upload is gone \(NoSuchUpload") as caught:
        send(store, content)
    assert caught.value.transient
    assert unfinished_uploads(store) == []
    send(store, content)
    assert (stored(store), unfinished_uploads(store)) == (content, [])


@pytest.mark.parametrize("times", [1, 10**9], ids=["once", "always"])
def test_a_completion_that_fails_after_it_was_answered_well_is_no_success(store: Store, times: int) -> None:
    store.proxy.set_faults(Fault(Kind.ERROR_AFTER_OK, ("CompleteMultipartUpload",), most=times))
    content = content_of(PART + 1)
    if times == 1:
        send(store, content)
        assert (stored(store), unfinished_uploads(store)) == (content, [])
        return
    with pytest.raises(StorageError, match="cannot complete it: the server is busy, or failed .InternalError"):
        send(store, content)
    assert len(of_operation(store, "CompleteMultipartUpload")) == retry.REQUESTS.attempts
    assert (stored(store), unfinished_uploads(store)) == (None, [])


@pytest.mark.parametrize("times", [1, 10**9], ids=["once", "always"])
def test_a_copy_that_fails_after_it_was_answered_well_is_no_success(store: Store, times: int) -> None:
    send(store, b"content")
    store.proxy.set_faults(Fault(Kind.ERROR_AFTER_OK, ("CopyObject",), most=times))
    source, target = (parse_url(store.url(name)) for name in ("file.bin", "copy.bin"))
    if times == 1:
        copy_file(source, target)
        assert stored(store, "copy.bin") == b"content"
        return
    with pytest.raises(StorageError, match=f"cannot copy {source} to it: the server is busy, or failed"):
        copy_file(source, target)
    assert len(of_operation(store, "CopyObject")) == retry.REQUESTS.attempts
    assert stored(store, "copy.bin") is None


OTHER_BUCKET = "others"
LARGE = content_of(2 * S3_PART + LAST_PIECE_BYTES)


@pytest.fixture
def parts_proxy(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Before a server that copies parts, with a large object; what is large is copied part by part."""
    monkeypatch.setattr(S3Service, "max_copied_bytes", 2 * S3_PART)
    monkeypatch.setattr(aws, "COPIED_PART_BYTES", S3_PART)
    client = s3_client(moto.url)
    client.create_bucket(Bucket=OTHER_BUCKET)
    client.put_object(Bucket=BUCKET, Key="large.bin", Body=LARGE)
    with s3_proxy(moto) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        forget_connections()
        yield running
        forget_connections()


@pytest.mark.parametrize("bucket", [BUCKET, OTHER_BUCKET])
def test_a_large_copy_is_whole_and_does_not_pass_through_here(
    parts_proxy: S3Proxy, moto: S3Server, bucket: str
) -> None:
    copy_file(parse_url(f"s3://{BUCKET}/large.bin"), parse_url(f"s3://{bucket}/copy.bin"))
    client = s3_client(moto.url)
    assert client.get_object(Bucket=bucket, Key="copy.bin")["Body"].read() == LARGE
    counts = parts_proxy.counts()
    assert (counts["UploadPartCopy"], counts["CompleteMultipartUpload"], counts["GetObject"]) == (3, 1, 0)


def unfinished_in(moto: S3Server) -> list[str]:
    return [each["Key"] for each in s3_client(moto.url).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


def test_a_large_copy_that_fails_leaves_nothing(parts_proxy: S3Proxy, moto: S3Server) -> None:
    parts_proxy.set_faults(Fault(Kind.ACCESS_DENIED, ("UploadPartCopy",), lambda each: each.call.part == 2))
    with pytest.raises(StorageError, match=r"copy.bin: cannot copy s3://checkpoints/large.bin to it: access denied"):
        copy_file(parse_url(f"s3://{BUCKET}/large.bin"), parse_url(f"s3://{BUCKET}/copy.bin"))
    assert unfinished_in(moto) == []


def test_a_large_copy_is_not_completed_without_the_claim(parts_proxy: S3Proxy, moto: S3Server) -> None:
    def check() -> None:
        if parts_proxy.counts()["UploadPartCopy"]:
            raise TargetError("another run has taken over")

    with claimed_while(check), pytest.raises(TargetError, match="another run has taken over"):
        copy_file(parse_url(f"s3://{BUCKET}/large.bin"), parse_url(f"s3://{BUCKET}/copy.bin"))
    assert parts_proxy.counts()["CompleteMultipartUpload"] == 0
    assert unfinished_in(moto) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_copy_where_the_service_has_no_parts_to_copy(
    store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It passes through this process."""
    monkeypatch.setattr(S3Service, "max_copied_bytes", 1000)
    monkeypatch.setattr(S3Service, "copy_large", lambda *_: False)
    content = content_of(2 * 8 * 2**20 + 5)
    path = store.files("large.bin")
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    store.server.look_again()
    source, target = (parse_url(store.url(name)) for name in ("large.bin", "copy.bin"))
    if fails:
        store.proxy.set_faults(Fault(Kind.ACCESS_DENIED, ("GetObject",), lambda each: each.number == 2))
        with pytest.raises(StorageError, match="cannot copy .* to it: access denied"):
            copy_file(source, target)
    else:
        copy_file(source, target)
    assert stored(store, "copy.bin") == (None if fails else content)
    assert unfinished_uploads(store) == []


def test_ranks_with_the_same_content_are_copied_by_the_server(store: Store) -> None:
    conversion = case(7009)
    strategy = read_strategy(str(conversion.directory / "dst_strategy.ckpt"))
    [stage] = strategy.stages
    whole = {name: whole_layout(len(layout.tensor_map), 3) for name, layout in stage.layouts.items()}
    path = store.files("whole.ckpt")
    path.parent.mkdir(parents=True)
    write_strategy(replace(strategy, stages=(replace(stage, layouts=whole),)), str(path))
    store.server.look_again()

    report = convert(conversion.request(store.url("out"), target_strategy=store.url("whole.ckpt")))
    assert [str(rank.outcome) for rank in report.ranks] == ["written", "copied", "copied"]
    written = read_tree(store.files("out"))
    assert written[1] == written[2] == written[0] == read_tree(conversion.directory / "full")[0]
    assert of_ranks(store, "CopyObject") == {1, 2}
    assert of_ranks(store, "PutObject") | of_ranks(store, "UploadPart") == {0}


def of_ranks(store: Store, operation: str) -> set[int]:
    """Target ranks at whose files there were such requests."""
    keys = (each.call.key for each in of_operation(store, operation))
    return {int(found[1]) for key in keys if (found := re.search(r"/out/rank_(\d+)/", key))}
