"""Work on a bucket keeps to its limit, whatever it does at once; local files have none."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.request.verification import VerificationRequest
from reshard.core.verification.published import resources_to_verify, verify_target
from tests.support.checkpoints import case, read_tree
from tests.support.stores import Store

CASE = case(7010)
RATE = 400 * 2**10
RESHARD = Path(sys.executable).with_name("reshard")


def seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def least_seconds(files: Path) -> float:
    """How long it takes at least to send the tensors' files, of which the last block need not wait for itself."""
    sizes = [file.stat().st_size for file in files.glob("rank_*/*")]
    return (sum(sizes) - max(sizes)) / RATE


def test_sending_and_receiving_keep_to_their_limits(store: Store, tmp_path: Path) -> None:
    url, files = store.url("limited"), store.files("limited")
    sent = seconds(lambda: convert(CASE.request(url, verify="none", bandwidth_limit="400k:off")))
    assert sent >= least_seconds(files)
    back = CASE.request(tmp_path / "back", source=url, source_strategy="", bandwidth_limit="off:400k", verify="none")
    assert seconds(lambda: convert(back)) >= least_seconds(files)
    request = VerificationRequest(target=url, bandwidth_limit="400k")
    with resources_to_verify(request):
        assert seconds(lambda: verify_target(request.target, request.level)) >= least_seconds(files)


def test_local_files_have_no_limit_and_a_conversion_is_the_same_with_another(tmp_path: Path) -> None:
    assert convert(CASE.request(tmp_path / "out", bandwidth_limit="1B")).written_bytes
    assert not convert(CASE.request(tmp_path / "out", bandwidth_limit="1M:2M")).written_bytes
    assert read_tree(tmp_path / "out") == CASE.want


@pytest.mark.parametrize("command", ["plan", "convert"])
def test_an_interrupted_command_does_not_wait_for_its_turn(command: str, store: Store, tmp_path: Path) -> None:
    """At a KiB in a second the threads that index a source have reserved the next hour."""
    url = store.add(CASE.directory / "src", "limited")
    strategies = (f"--source-strategy={CASE.request('x').source_strategy}", "--bandwidth-limit=1")
    process = subprocess.Popen(
        [RESHARD, command, url, tmp_path / "out", *strategies], stderr=subprocess.PIPE, text=True
    )
    try:
        while not any(exchange.call.operation == "GetObject" for exchange in store.proxy.exchanges()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.communicate(timeout=120)[1]
        assert process.returncode == 130
    finally:
        process.kill()


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="must be bytes per second such as 10M or 512k, off, or two of them"):
        build_request(source="a", target="b", bandwidth_limit="fast")
