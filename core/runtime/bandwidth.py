"""Limits how fast a process sends to remote storages, and receives from them, where others use the same line.

Limits are written as rclone's bwlimit has them: `10M`, `512k`, `off`, or two of them, `1M:10M`, for what is sent
and what is received, in a second. Units are binary; a bare number is KiB.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache

from reshard.core.runtime.context import having
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import is_stoppable, sleep_unless_stopped, stoppable

_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[bkmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"b": 1, "": 2**10, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_OFF = "off"


class Bandwidth(Record):
    """Bytes per second; None: no limit."""

    send: float | None = None
    receive: float | None = None

    def shared_by(self, processes: int) -> "Bandwidth":
        """Return the limits of each of several processes."""
        return Bandwidth(*(rate and rate / processes for rate in (self.send, self.receive)))


def parse_bandwidth(text: str) -> Bandwidth:
    """Parse limits such as `10M` or `1M:off`; an empty text has none.

    Raises:
        ValueError: the text is something else.
    """
    rates = [_parse_rate(part) for part in text.strip().split(":")] if text.strip() else [None]
    if len(rates) > 2:
        raise ValueError(_ADVICE)
    return Bandwidth(rates[0], rates[-1])


_ADVICE = "must be bytes per second such as 10M or 512k, off, or two of them for sending and receiving, 1M:10M"


def _parse_rate(text: str) -> float | None:
    if text.strip().lower() == _OFF:
        return None
    found = _RATE.fullmatch(text.strip())
    rate = float(found["number"]) * _UNITS[found["unit"].lower()] if found else 0.0
    if not rate:
        raise ValueError(_ADVICE)
    return rate


class _Line:
    """One direction. Bytes wait until all that came before them have had their time."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free = time.monotonic()

    def take(self, count: int) -> None:
        with self._lock:
            begin = max(self._free, time.monotonic())
            self._free = begin + count / self._bytes_per_second
        pause = begin - time.monotonic()
        if pause > 0:
            sleep_unless_stopped(pause)


class _Lines(Record):
    send: _Line | None
    receive: _Line | None


@cache
def _lines_of(bandwidth: Bandwidth) -> _Lines:
    """Return what all work of this process with the same limits shares."""
    return _Lines(*(None if rate is None else _Line(rate) for rate in (bandwidth.send, bandwidth.receive)))


_current: ContextVar[_Lines | None] = ContextVar("reshard_bandwidth", default=None)


@contextmanager
def bandwidth_limited(bandwidth: Bandwidth) -> Iterator[None]:
    """Limit what is sent and received inside the block, by all threads to which its context is passed on."""
    if bandwidth == Bandwidth():
        yield
        return
    with having(_current, _lines_of(bandwidth)), nullcontext() if is_stoppable() else stoppable():
        yield


def before_sending(count: int) -> None:
    """Wait until this many bytes may be sent."""
    lines = _current.get()
    if lines is not None and lines.send is not None:
        lines.send.take(count)


def before_receiving(count: int) -> None:
    """Wait until this many bytes may be received."""
    lines = _current.get()
    if lines is not None and lines.receive is not None:
        lines.receive.take(count)
