"""Files with a CRC at their beginning, sent to an object store: their first part goes last."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import StorageError
from reshard.core.request.conversion import build_request
from reshard.core.runtime import retry
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_file
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, check_crc_of, read_tree
from tests.support.s3_traffic import Fault, Kind
from tests.support.stores import Store, content_of, of_operation, stored, unfinished_uploads

PART = 2**18


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))
    monkeypatch.setattr(retry, "WORK", RetryPolicy(retry.WORK.attempts, 0.001))


def send(store: Store, content: bytes, *, keeps_first: bool = True, ahead: int = 2) -> None:
    """Write it as `file.bin`, then rewrite 12 bytes near the beginning."""
    with write_file(parse_url(store.url("file.bin")), UploadBuffers(PART, ahead, keeps_first)) as file:
        for start in range(0, len(content), 100_000):
            file.write(content[start : start + 100_000])
        file.rewrite(34, b"first of all")


@pytest.mark.parametrize(
    ("size", "ahead"), [(100, 1), (PART, 1), (PART + 1, 1), (6 * PART + 77, 1), (6 * PART + 77, 3)]
)
def test_the_beginning_is_rewritten(store: Store, size: int, ahead: int) -> None:
    content = content_of(size)
    send(store, content, ahead=ahead)
    assert stored(store) == content[:34] + b"first of all" + content[46:]
    assert unfinished_uploads(store) == []
    sent = [each.call.part for each in of_operation(store, "UploadPart")]
    parts = -(-size // PART)
    if parts == 1:
        assert store.proxy.counts() == {"PutObject": 1}
    else:
        assert sorted(sent) == list(range(1, parts + 1))
        assert 1 not in sent[: parts - 1 - ahead]  # those before it may still be under way


def test_a_first_part_that_was_not_kept_cannot_be(store: Store) -> None:
    with pytest.raises(StorageError, match=r"file\.bin: cannot write 12 bytes at 34: it was sent already"):
        send(store, content_of(3 * PART), keeps_first=False)
    assert stored(store) is None
    assert unfinished_uploads(store) == []


def test_it_is_tried_again_like_any_other_part(store: Store) -> None:
    content = content_of(3 * PART)
    store.proxy.set_faults(Fault(Kind.SLOW_DOWN, ("UploadPart",), lambda exchange: exchange.call.part == 1, most=1))
    send(store, content)
    assert stored(store) == content[:34] + b"first of all" + content[46:]
    assert [each.call.part for each in of_operation(store, "UploadPart")].count(1) == 2


@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_a_conversion_of_many_ranks(store: Store, tmp_path: Path, format: str) -> None:
    request = case(7010).request(store.url("out"), format=format, write_crc=True)
    convert(request)
    store.server.look_again()
    for path in store.files("out").glob("rank_*/*"):
        check_crc_of(path)
    convert(case(7010).request(tmp_path / "plain", format=format))
    assert read_tree(store.files("out")) == read_tree(tmp_path / "plain")
    assert verify_target(store.url("out"), VerifyLevel.CHECKSUM).problems == ()


@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_a_file_of_several_parts_with_little_memory(store: Store, tmp_path: Path, format: str) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"w{number}": generator.integers(0, 255, 4_000_003, np.uint8) for number in range(4)}
    save_file(arrays | {"step": np.array(3)}, tmp_path / "m.safetensors")
    convert(
        build_request(
            source=str(tmp_path / "m.safetensors"),
            target=store.url("out"),
            format=format,
            write_crc=True,
            memory_limit="16MiB",
        )
    )
    assert max(each.call.part for each in of_operation(store, "UploadPart")) == 4
    check_crc_of(store.files(f"out/rank_0/checkpoint_0.{format}"))
    assert verify_target(store.url("out"), VerifyLevel.CHECKSUM).problems == ()
