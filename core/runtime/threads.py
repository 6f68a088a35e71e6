"""Work on many items in threads, and garbage collection that does not slow it down."""

import gc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_threads(work: Callable[[Item], Answer], items: Iterable[Item], workers: int, stop: Event) -> list[Answer]:
    """Return the result of `work` for each item, in order.

    The first error, or an interruption, cancels items not yet begun and sets `stop`, so that running ones end soon.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="reshard") as pool:
        futures = [pool.submit(copy_context().run, work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()  # leaving the pool waits for running items
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_THRESHOLDS = (100_000, 20, 100)
"""Thresholds of `gc.set_threshold`: new objects per young collection, young per middle, middle per full ones."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage after 100,000 new objects, not after 700, while the block runs.

    Plans and records are millions of small objects which all survive, and each full collection visits all of them: nine
    took a third of the time of a conversion of 60,000 small parameters, and freed nothing.
    """
    before = gc.get_threshold()
    if not before[0]:  # switched off
        yield
        return
    gc.set_threshold(*map(max, before, _THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
