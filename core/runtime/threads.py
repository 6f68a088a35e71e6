"""Work on many items in threads, and garbage collection that does not slow it down."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Lock
from typing import TypeVar

from msgspec import Struct, field

from reshard.core.runtime.progress import advancing, current_progress

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_threads(work: Callable[[Item], Answer], items: Iterable[Item], workers: int, stop: Event) -> list[Answer]:
    """Return the result of `work` for each item, in order.

    The first error, or an interruption, cancels items not yet begun and sets `stop`, so that running ones end soon. So
    does the end of the context's `stoppable` block.
    """
    # they load logging, which a command's help has no need of
    from concurrent.futures import ThreadPoolExecutor

    from reshard.core.runtime.retry import check_not_stopped, ending_pauses

    def do(item: Item) -> Answer:
        check_not_stopped()
        return work(item)

    with ThreadPoolExecutor(workers, thread_name_prefix="reshard") as pool, ending_pauses():
        futures = [pool.submit(copy_context().run, do, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()  # leaving the pool waits for running items
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def in_phase(
    phase: str,
    total_bytes: int,
    work: Callable[[Item, Callable[[int], None]], Answer],
    items: Collection[Item],
    workers: int,
    stop: Event,
) -> list[Answer]:
    """Return what `in_threads` does, as a phase of the progress; `work` is given a function to report bytes by."""
    progress = current_progress()
    if items:
        progress.begin(phase, total_bytes)
    advance = advancing(progress, stop)
    return in_threads(lambda item: work(item, advance), items, workers, stop)


_THRESHOLDS = (100_000, 20, 100)
"""Thresholds of `gc.set_threshold`: new objects per young collection, young per middle, middle per full ones."""

_OBJECTS_PER_PARAMETER = 50
"""Made for a parameter of a plan and, while they are written and checked, of two ranks."""
_MOST_YOUNG = 50_000_000
"""So that a process which goes on with something else collects garbage now and then; the limit is C's int."""


class _Collections(Struct):
    """Garbage collection in this process: the blocks in which it is rare, and its thresholds outside of them."""

    blocks: int = 0
    outside: tuple[int, int, int] = (0, 0, 0)
    lock: Lock = field(default_factory=Lock)

    def make_rare(self) -> None:
        """Begin a block."""
        with self.lock:
            self.blocks += 1
            if self.blocks == 1:
                self.outside = gc.get_threshold()
                if self.outside[0]:  # not switched off
                    gc.set_threshold(*map(max, self.outside, _THRESHOLDS))

    def make_rarer(self, young: int) -> None:
        """Collect young objects only after so many new ones, until the last block ends."""
        with self.lock:
            now, *older = gc.get_threshold()
            if self.blocks and 0 < now < young:
                gc.set_threshold(young, *older)

    def restore(self) -> None:
        """End a block; the last one ends them all."""
        with self.lock:
            self.blocks -= 1
            if not self.blocks and self.outside[0]:
                gc.set_threshold(*self.outside)


_collections = _Collections()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage after 100,000 new objects, not after 700, while the block runs, or another one in any thread.

    Plans and records are millions of small objects which all survive, and each full collection visits all of them: nine
    took a third of the time of a conversion of 60,000 small parameters, and freed nothing.
    """
    _collections.make_rare()
    try:
        yield
    finally:
        _collections.restore()


def expect_parameters(count: int) -> None:
    """Make collections so rare that a plan of `count` parameters needs none, until `rare_collections` end.

    All that it makes survives, or ends with its rank: collections took a twelfth of the time of 20,000 parameters.
    """
    _collections.make_rarer(min(_OBJECTS_PER_PARAMETER * count, _MOST_YOUNG))
