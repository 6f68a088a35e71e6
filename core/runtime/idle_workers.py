"""Workers of a process that have no unit of work: a unit in progress borrows them to read ahead.

The scheduler of units offers them when nothing is left to begin. It is in the context, so that units find it behind a
task runner; in other processes nothing is offered.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from threading import Lock

from reshard.core.runtime.context import having


class IdleWorkers:
    """Counts the workers of one scheduler that may be borrowed, and those that are lent; thread-safe.

    A worker is borrowed with its memory: a unit that has one may use as many buffers more as a worker has.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._offered = 0
        self._lent = 0

    @property
    def lent(self) -> int:
        """Number of workers that are lent now."""
        return self._lent

    def offer(self, count: int) -> None:
        """Let `count` workers be lent at a time, those that are lent already included; 0 withdraws an offer."""
        with self._lock:
            self._offered = count

    def borrow(self) -> bool:
        """Borrow a worker; False if none is offered."""
        with self._lock:
            if self._lent >= self._offered:
                return False
            self._lent += 1
            return True

    def give_back(self, count: int) -> None:
        """Return borrowed workers."""
        with self._lock:
            self._lent -= count


_nobody = IdleWorkers()
_idle: ContextVar[IdleWorkers] = ContextVar("reshard_idle_workers", default=_nobody)


def current_idle_workers() -> IdleWorkers:
    """Return the idle workers of this context; without a scheduler there are none."""
    return _idle.get()


def lending(idle: IdleWorkers) -> AbstractContextManager[IdleWorkers]:
    """Let work begun inside the block borrow from `idle`."""
    return having(_idle, idle)
