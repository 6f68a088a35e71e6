"""Trying again what may succeed later: transient failures of a storage, with growing pauses.

There are two layers, and in each of them one set of attempts: a request is repeated soon, a unit of work (a rank, the
plan) later and from its beginning.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from reshard.core.errors import ConversionError, ReshardError, is_transient


@dataclass(frozen=True)
class RetryPolicy:
    """How often something is tried in all, and how long the first pause is; each further one is twice as long."""

    attempts: int
    first_pause_seconds: float


WORK = RetryPolicy(attempts=4, first_pause_seconds=1.0)
REQUESTS = RetryPolicy(attempts=5, first_pause_seconds=0.2)

Result = TypeVar("Result")


class RetryCount:
    """How many requests were made again; counted by many threads."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """One more."""
        with self._lock:
            self.value += 1


_count: ContextVar[RetryCount | None] = ContextVar("reshard_retries", default=None)


@contextmanager
def counting_retries() -> Iterator[RetryCount]:
    """Counts the requests that are made again on behalf of what runs inside the block."""
    count = RetryCount()
    token = _count.set(count)
    try:
        yield count
    finally:
        _count.reset(token)


def retries_counted() -> int:
    """How many there were until now; 0 if nobody counts."""
    count = _count.get()
    return 0 if count is None else count.value


def count_retry(_: str) -> None:
    """Takes note of a request that is made again; who counts is in the context."""
    count = _count.get()
    if count is not None:
        count.add()


_stop: ContextVar[threading.Event | None] = ContextVar("reshard_stop", default=None)


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Inside the block nothing is tried again once the event is set."""
    stop = threading.Event()
    token = _stop.set(stop)
    try:
        yield stop
    finally:
        _stop.reset(token)


def with_retries(
    work: Callable[[], Result], told: Callable[[str], None], *, policy: RetryPolicy | None = None
) -> Result:
    """The result of `work`, repeated after transient failures; `told` hears of each repetition."""
    policy = policy or WORK
    for attempt in range(1, policy.attempts):
        try:
            return work()
        except Exception as error:
            stop = _stop.get()
            if not is_transient(error) or (stop is not None and stop.is_set()):
                raise
            # jitter: workers that failed together should not come back together
            pause = policy.first_pause_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
            told(f"{error}; trying again in {pause:.1f} s (attempt {attempt + 1} of {policy.attempts})")
            if not paused(pause):
                raise
    return work()


def paused(seconds: float) -> bool:
    """Lets time pass; False, at once, where all is to stop."""
    stop = _stop.get()
    if stop is None:
        time.sleep(seconds)
        return True
    return not stop.wait(seconds)


class Losses:
    """Counts works that the storage failed, one after another and each after all its retries, as if it were down."""

    _MOST_IN_A_ROW = 3

    def __init__(self) -> None:
        self._in_a_row = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The block is one work.

        Raises:
            ConversionError: so many before it failed that it is not tried.
        """
        if self._in_a_row >= self._MOST_IN_A_ROW:
            raise ConversionError("not tried, because the storage failed for the ranks before it for so long")
        try:
            yield
        except ReshardError as error:
            self._in_a_row += is_transient(error)
            raise
        self._in_a_row = 0
