"""The same work on many things, in threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_threads(work: Callable[[Item], Answer], items: Iterable[Item], workers: int, stop: Event) -> list[Answer]:
    """What `work` gives for each item, in order.

    The first error, or an interruption, ends all: what has not begun never does, and `stop` is set, for what is under
    way to end soon.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="reshard") as pool:
        futures = [pool.submit(copy_context().run, work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()  # leaving the pool waits for what is under way
            pool.shutdown(wait=False, cancel_futures=True)
            raise
