"""Files that are sent to an object store: the object is there whole or not at all, and no part of it is left behind."""

import os
import re

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.errors import StorageError
from reshard.core.runtime import retry
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.copying import copy_file
from reshard.core.storage.uploads import abort_uploads
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_file
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import whole_layout
from tests.support.checkpoints import case, read_tree
from tests.support.s3_client import s3_client
from tests.support.s3_traffic import Exchange, Fault, Kind
from tests.support.stores import BUCKET, Store, content_of, of_operation, stored, unfinished_uploads

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
    assert most_at_once(of_operation(store, "UploadPart")) == ahead + 1


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
    with retry.counting_retries() as count:
        send(store, content)
    assert stored(store) == content
    assert unfinished_uploads(store) == []
    made = [each for each in of_operation(store, operation) if each.call.part in (0, 1)]
    assert [each.fault for each in made] == [kind, None]
    # what can be repeated without harm aiohttp repeats by itself, once, if the connection ends before any answer
    assert count.value == 1 or (count.value == 0 and operation != "CreateMultipartUpload" and kind not in ANSWERS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_part_that_fails_for_good(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.ACCESS_DENIED, ("UploadPart",), lambda exchange: exchange.call.part == 2))
    with pytest.raises(StorageError) as caught:
        send(store, content_of(6 * PART))
    url = store.url("file.bin")
    permission = {"s3": "s3:PutObject", "obs": "obs:object:PutObject"}[store.protocol]
    denied = f"access denied: the credentials lack the permission {permission}"
    assert str(caught.value) == f"{url}: cannot write part 2: {denied}"
    assert (stored(store), unfinished_uploads(store)) == (None, [])
    assert [each.call.part for each in of_operation(store, "UploadPart")].count(2) == 1


def test_a_part_that_fails_too_often(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.SLOW_DOWN, ("UploadPart",), lambda exchange: exchange.call.part == 1))
    with pytest.raises(StorageError, match="cannot write part 1: the server is busy, or failed") as caught:
        send(store, content_of(2 * PART))
    assert caught.value.transient
    assert (stored(store), unfinished_uploads(store)) == (None, [])
    assert [each.call.part for each in of_operation(store, "UploadPart")].count(1) == retry.REQUESTS.attempts


def test_an_upload_whose_beginning_was_not_answered_is_given_up_in_the_end(store: Store) -> None:
    seen: list[list[str]] = []
    store.proxy.before = lambda exchange: (
        seen.append(unfinished_uploads(store)) if exchange.call.operation == "CompleteMultipartUpload" else None
    )
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CreateMultipartUpload",), most=2))
    content = content_of(PART + 1)
    send(store, content)
    key = f"{store.prefix}/file.bin"
    assert seen == [[key] * 3]
    assert (stored(store), unfinished_uploads(store)) == (content, [])


def test_nor_is_it_left_when_none_is_answered(store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CreateMultipartUpload",)))
    with pytest.raises(StorageError, match="cannot begin to write it"):
        send(store, content_of(PART + 1))
    assert store.proxy.counts()["CreateMultipartUpload"] == retry.REQUESTS.attempts
    assert (stored(store), unfinished_uploads(store)) == (None, [])


def test_a_neighbour_whose_key_begins_alike_keeps_its_upload(store: Store) -> None:
    client = s3_client(store.server.url)
    neighbour = {"Bucket": BUCKET, "Key": f"{store.prefix}/file.bin.other"}
    upload = client.create_multipart_upload(**neighbour)["UploadId"]
    store.proxy.set_faults(Fault(Kind.ANSWER_LOST, ("CreateMultipartUpload",), most=1))
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
    with pytest.raises(StorageError, match="its upload is gone: ") as caught:
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


def large_copy(store: Store) -> tuple[Location, Location]:
    """Where a file is that is too large to be copied by one request, and where its copy is to be."""
    source, target = (parse_url(store.url(name)) for name in ("large.bin", "copy.bin"))
    path = store.files("large.bin")
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(200 * 2**20)
        for place in range(0, 200 * 2**20, 2**20):
            os.pwrite(file.fileno(), place.to_bytes(8), place)
    store.server.look_again()
    return source, target


@pytest.mark.slow
def test_a_large_copy_is_whole_and_leaves_nothing_else(store: Store) -> None:
    source, target = large_copy(store)
    store.proxy.set_faults(Fault(Kind.SLOW_DOWN, ("CopyObject", "UploadPartCopy", "CompleteMultipartUpload"), most=1))
    copy_file(source, target)
    assert store.files("copy.bin").read_bytes() == store.files("large.bin").read_bytes()
    assert unfinished_uploads(store) == []
    assert "GetObject" not in store.proxy.counts()


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
