"""Requests to remote storages: each tried again after transient failures, many of them at once.

A request that fails now and then is not worth a rank's work: it is repeated here, a few times, after short pauses. The
retries of the packages behind fsspec are switched off, for retries of several layers multiply.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import TypeVar

from reshard.core.runtime import retry
from reshard.core.runtime.retry import count_retry, with_retries
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.urls import Location

REQUESTS_AT_ONCE = 32
"""Of one process. With 30 ms to the server, and 4 MiB each, they could keep 4 GiB/s under way."""

GAP_WORTH_READING_BYTES = 256 * 2**10
"""Reading and dropping this much costs less than another request, which takes about 1.2 ms of processor time.

In that time 1 GB/s brings four times as much; but what is read in vain may cost more where a network is shared.
"""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def requested(location: Location, action: str, work: Callable[[], Answer]) -> Answer:
    """The answer to a request, repeated after transient failures; `action` completes the sentence "cannot …".

    Raises:
        StorageError: it failed for good, or too often.
    """

    def attempt() -> Answer:
        with mapped_errors(location, action):
            return work()

    return with_retries(attempt, count_retry, policy=retry.REQUESTS)


def at_once(function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """What a function that makes requests gives for each item, in order. The first error is raised, the rest dropped.

    The function must not make other requests at once: they would wait for the threads that wait for them.
    """
    under_way: deque[Future[Answer]] = deque()
    try:
        for item in items:
            under_way.append(submitted(function, item))
            if len(under_way) == REQUESTS_AT_ONCE:  # more answers at a time would only take memory
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()


def submitted(function: Callable[[Item], Answer], item: Item) -> "Future[Answer]":
    """A call of a function that makes requests, under way in the background. It must not wait for another such."""
    return _pool(os.getpid()).submit(copy_context().run, function, item)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    # for the life of the process: threads are begun when there is something to do, and wait at no cost. A fork has none
    # of them, and gets a pool of its own
    return ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="reshard-request")
