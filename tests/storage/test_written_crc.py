"""Conversions to an object store that give files a CRC."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, check_crc_of, read_tree
from tests.support.s3_traffic import Fault, Kind
from tests.support.stores import Store, of_operation, unfinished_uploads


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))
    monkeypatch.setattr(retry, "WORK", RetryPolicy(retry.WORK.attempts, 0.001))


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
    assert sorted(each.call.part for each in of_operation(store, "UploadPart")) == [1, 2, 3, 4]
    check_crc_of(store.files(f"out/rank_0/checkpoint_0.{format}"))
    assert verify_target(store.url("out"), VerifyLevel.CHECKSUM).problems == ()


def test_a_crc_in_the_header_takes_two_readings_each_with_its_retries(store: Store, tmp_path: Path) -> None:
    source = store.add(case(7010).directory / "src", "src")
    plain = convert(case(7010).request(tmp_path / "plain", source=source, format="safetensors"))
    faults = [Fault(kind, ("GetObject", "PutObject"), probability=0.2) for kind in (Kind.RESET_IN_BODY, Kind.SLOW_DOWN)]
    store.proxy.set_faults(*faults)
    report = convert(case(7010).request(store.url("out"), source=source, format="safetensors", write_crc=True))
    store.proxy.set_faults()
    assert report.retried_requests
    assert report.read_bytes == 2 * plain.read_bytes
    store.server.look_again()
    for path in store.files("out").glob("rank_*/*"):
        check_crc_of(path)
    assert read_tree(store.files("out")) == read_tree(tmp_path / "plain")
    assert unfinished_uploads(store) == []
