"""Retries after transient failures of a storage, with growing pauses.

There are two layers with one set of attempts each: a request is repeated soon, a unit of work (a rank, the plan) later
and from its beginning.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakSet

from reshard.core.errors import ConversionError, ReshardError, StoppedError, is_transient
from reshard.core.runtime.context import having
from reshard.core.runtime.log import detail
from reshard.core.runtime.records import Record


class RetryPolicy(Record):
    """Number of attempts in all, and the first pause; each further pause is twice as long."""

    attempts: int
    first_pause_seconds: float


WORK = RetryPolicy(attempts=4, first_pause_seconds=1.0)
REQUESTS = RetryPolicy(attempts=5, first_pause_seconds=0.2)

Result = TypeVar("Result")


class RetryCount:
    """Number of repeated requests; thread-safe."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one repeated request."""
        with self._lock:
            self.value += 1


_count: ContextVar[RetryCount | None] = ContextVar("reshard_retries", default=None)


@contextmanager
def counting_retries() -> Iterator[RetryCount]:
    """Count the requests repeated on behalf of the block."""
    count = RetryCount()
    with having(_count, count):
        yield count


def retries_counted() -> int:
    """Number of requests repeated so far; 0 where they are not counted."""
    count = _count.get()
    return 0 if count is None else count.value


def count_retry(message: str) -> None:
    """Log a repeated request, and count it in this context's counter, if there is one."""
    detail(message)
    count = _count.get()
    if count is not None:
        count.add()


class _Stop(threading.Event):
    """An event that sets those of the blocks inside its own."""

    def __init__(self, outer: "_Stop | None") -> None:
        super().__init__()
        self._inner: WeakSet[_Stop] = WeakSet()
        if outer is not None:
            outer.pass_on(self)

    def pass_on(self, inner: "_Stop") -> None:
        """Set an inner event with this one."""
        self._inner.add(inner)
        if self.is_set():
            inner.set()

    def set(self) -> None:
        """Set it, and those inside."""
        super().set()
        for each in list(self._inner):
            each.set()


_stop: ContextVar[_Stop | None] = ContextVar("reshard_stop", default=None)


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Yield an event that, once set, ends all pauses inside the block; it is set if the block fails or an outer is."""
    stop = _Stop(_stop.get())
    with having(_stop, stop):
        try:
            yield stop
        except BaseException:
            stop.set()
            raise


def check_not_stopped() -> None:
    """Raise StoppedError if this context's `stoppable` block is stopped: before work that reports no progress."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise StoppedError("stopped")


def is_stoppable() -> bool:
    """True in a `stoppable` block."""
    return _stop.get() is not None


@contextmanager
def ending_pauses() -> Iterator[None]:
    """End all pauses of this context's `stoppable` block if this one is interrupted; inside that of a pool of threads.

    Leaving a pool waits for its threads.
    """
    try:
        yield
    except BaseException as error:
        stop = _stop.get()
        if stop is not None and not isinstance(error, Exception | GeneratorExit):
            stop.set()
        raise


def with_retries(
    work: Callable[[], Result], note: Callable[[str], None], *, policy: RetryPolicy | None = None
) -> Result:
    """Return the result of `work`, repeated after transient failures; `note` receives a message for each repetition."""
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
            note(f"{error}; trying again in {pause:.1f} s (attempt {attempt + 1} of {policy.attempts})")
            if not sleep_unless_stopped(pause):
                raise
    return work()


def sleep_unless_stopped(seconds: float) -> bool:
    """Sleep; return False as soon as the `stoppable` block is stopped."""
    stop = _stop.get()
    if stop is None:
        time.sleep(seconds)
        return True
    return not stop.wait(seconds)


class FailureStreak:
    """Counts consecutive units of work that failed transiently after all their retries, as if the storage were down."""

    _MAX_FAILURES = 3

    def __init__(self) -> None:
        self._in_a_row = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the block as one unit of work; raise ConversionError instead if too many failed before it."""
        if self._in_a_row >= self._MAX_FAILURES:
            raise ConversionError("not tried, because the storage failed for several ranks before it")
        try:
            yield
        except ReshardError as error:
            self._in_a_row += is_transient(error)
            raise
        self._in_a_row = 0
