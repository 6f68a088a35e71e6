"""Limits of what a process sends and receives."""

import threading
import time

import pytest

from reshard.core.runtime.bandwidth import (
    Bandwidth,
    bandwidth_limited,
    before_receiving,
    before_sending,
    parse_bandwidth,
)
from reshard.core.runtime.retry import stoppable


@pytest.mark.parametrize(
    ("text", "send", "receive"),
    [
        ("", None, None),
        ("off", None, None),
        ("10M", 10 * 2**20, 10 * 2**20),
        ("512k", 512 * 2**10, 512 * 2**10),
        ("10", 10 * 2**10, 10 * 2**10),
        ("100B", 100, 100),
        ("1.5G", 1.5 * 2**30, 1.5 * 2**30),
        ("10MiB", 10 * 2**20, 10 * 2**20),
        (" 1M:off ", 2**20, None),
        ("off:10M", None, 10 * 2**20),
        ("1M:100k", 2**20, 100 * 2**10),
    ],
)
def test_limits_are_written_as_rclone_has_them(text: str, send: float | None, receive: float | None) -> None:
    assert parse_bandwidth(text) == Bandwidth(send, receive)


@pytest.mark.parametrize("text", ["fast", "0", "-1M", "1M:2M:3M", "10M/s", "08:00,512k 12:00,off", ":", "1M:"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be bytes per second such as 10M or 512k, off, or two of them"):
        parse_bandwidth(text)


def test_processes_share_a_limit() -> None:
    assert parse_bandwidth("8M:off").shared_by(4) == Bandwidth(2 * 2**20, None)


def test_all_threads_together_are_as_fast_as_the_limit() -> None:
    def receive() -> None:
        with bandwidth_limited(Bandwidth(receive=100_000)):
            for _ in range(5):
                before_receiving(2_000)
                before_sending(10**9)

    begun = time.monotonic()
    threads = [threading.Thread(target=receive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # all of 30,000 bytes but the last 2,000, which need not wait for themselves
    assert time.monotonic() - begun >= 0.27


def test_a_stopped_run_waits_for_nothing() -> None:
    with stoppable() as stop, bandwidth_limited(Bandwidth(send=1)):
        before_sending(10**9)
        stop.set()
        before_sending(1)


def test_without_limits_nothing_waits() -> None:
    before_sending(10**15)
    before_receiving(10**15)
    with bandwidth_limited(Bandwidth()):
        before_sending(10**15)
        before_receiving(10**15)
