"""Progress of long work, reported to a listener that the work does not know.

The listener is in the context, so that it reaches work in other threads behind a task runner.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from threading import Event
from typing import Protocol

from reshard.core.errors import StoppedError
from reshard.core.runtime.context import having


class Progress(Protocol):
    """Progress listener; must be thread-safe."""

    def note(self, message: str) -> None:
        """Report an event worth a line."""

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Begin a phase, such as `converting`, of `total_bytes`; 0: they are unknown. It ends the phase before it."""

    def advance(self, count_bytes: int) -> None:
        """Report `count_bytes` more of the phase as done."""


class SilentProgress:
    """A listener that drops everything."""

    def note(self, message: str) -> None:
        """Drop the message."""

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Drop the event."""

    def advance(self, count_bytes: int) -> None:
        """Drop the event."""


def advancing(progress: Progress, stop: Event) -> Callable[[int], None]:
    """Wrap `progress.advance` for work that cannot be interrupted from outside: it raises once `stop` is set."""

    def advance(count_bytes: int) -> None:
        if stop.is_set():
            raise StoppedError("stopped")
        progress.advance(count_bytes)

    return advance


_listener: ContextVar[Progress] = ContextVar("reshard_progress", default=SilentProgress())  # noqa: B039


def current_progress() -> Progress:
    """Return the listener of this context."""
    return _listener.get()


def reporting_to(progress: Progress) -> AbstractContextManager[Progress]:
    """Make `progress` the listener of all work begun inside the block."""
    return having(_listener, progress)
