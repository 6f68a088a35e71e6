"""How long work tells of itself, without knowing who listens.

The listener is carried by the context, so that it reaches work that runs behind a task runner in other threads.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
from typing import Protocol

from reshard.core.errors import StoppedError


class Progress(Protocol):
    """Who is told; called from many threads."""

    def note(self, message: str) -> None:
        """Something worth a line happened."""

    def begin(self, total_bytes: int) -> None:
        """The long part begins: this much is to be written and read back."""

    def advance(self, count_bytes: int) -> None:
        """So much more is done."""


class SilentProgress:
    """Tells nobody."""

    def note(self, message: str) -> None:
        """Dropped."""

    def begin(self, total_bytes: int) -> None:
        """Dropped."""

    def advance(self, count_bytes: int) -> None:
        """Dropped."""


def advancing(progress: Progress, stop: Event) -> Callable[[int], None]:
    """`progress.advance`, for work that cannot be interrupted from outside: once `stop` is set, it raises.

    The function raises:
        StoppedError: the work has to stop.
    """

    def advance(count_bytes: int) -> None:
        if stop.is_set():
            raise StoppedError("stopped")
        progress.advance(count_bytes)

    return advance


_listener: ContextVar[Progress] = ContextVar("reshard_progress", default=SilentProgress())  # noqa: B039


def current_progress() -> Progress:
    """Who is to be told in this context."""
    return _listener.get()


@contextmanager
def reporting_to(progress: Progress) -> Iterator[None]:
    """Makes `progress` the listener of all work begun inside the block."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)
