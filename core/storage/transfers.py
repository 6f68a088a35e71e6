"""Requests to remote storages: repeated after transient failures, many of them at once.

A rank's work should not be lost to an occasional failure: a request is repeated here a few times, after short pauses.
The retries of clients are switched off, because retries of several layers multiply.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, partial
from typing import ParamSpec, TypeVar

from reshard.core.runtime import retry
from reshard.core.runtime.retry import count_retry, with_retries
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.store import Store
from reshard.core.storage.urls import Location

REQUESTS_AT_ONCE = 64
"""In one process: with a latency of 30 ms, and 4 MiB each, enough for 8 GiB/s.

A file's headers are looked for in as many places at once; of contents the memory budget has fewer bytes in flight.
"""

GAP_WORTH_READING_BYTES = 256 * 2**10
"""Reading and dropping this much costs less than another request, which takes about 1.2 ms of processor time.

In that time 1 GB/s brings four times as much; but dropped bytes may cost more on a busy network.
"""

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


def requested(location: Location, action: str, work: Callable[[], Answer]) -> Answer:
    """Return the answer to a request, repeated after transient failures; `action` completes the sentence "cannot …"."""

    def attempt() -> Answer:
        with mapped_errors(location, action):
            return work()

    return with_retries(attempt, count_retry, policy=retry.REQUESTS)


def at_once(function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """Yield a requesting function's result for each item, in order; the first error ends the rest.

    The function must not use the pool itself: its requests would wait for the threads that wait for them.
    """
    in_flight: deque[Future[Answer]] = deque()
    try:
        for item in items:
            in_flight.append(submitted(function, item))
            if len(in_flight) == REQUESTS_AT_ONCE:  # more answers would only take memory
                yield in_flight.popleft().result()
        while in_flight:
            yield in_flight.popleft().result()
    finally:
        for future in in_flight:
            future.cancel()


def each_at(store: Store, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """Yield a looking function's result for each item of a storage: `at_once`, unless a look costs no request."""
    return map(function, items) if store.is_near else at_once(function, items)


def submitted(
    function: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> "Future[Answer]":
    """Call a requesting function in the pool; it must not wait for another such call."""
    return _pool(os.getpid()).submit(copy_context().run, partial(function, *args, **kwargs))


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    # for the life of the process: threads start when needed, and wait at no cost. A fork has none of them, and gets a
    # pool of its own
    return ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="reshard-request")
