"""Who listens to a call of one of `reshard`'s functions: a listener of its progress, and an event that cancels it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from reshard.core.errors import ConversionError, InputError, StoppedError, is_transient
from reshard.core.runtime.context import having
from reshard.core.runtime.progress import Progress
from reshard.core.runtime.progress_lines import LoggedProgress
from reshard.core.runtime.retry import stoppable
from reshard.progress_bars import Listener, listener_of

_LOOK_SECONDS = 0.1

_outer_cancel: ContextVar[threading.Event | None] = ContextVar("reshard_cancel", default=None)


@contextmanager
def listening(
    progress: Listener | None, cancel: threading.Event | None, *, resumes: bool = False
) -> Iterator[Progress]:
    """Log the progress of the work inside the block, report it to `progress`, and end the work once `cancel` is set.

    `resumes`: the same call goes on with what was done; without it, it starts over.

    Raises:
        InputError: `progress` is no listener, or `cancel` no event.
        StoppedError: the work was cancelled.
    """
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise InputError(f"cancel={cancel!r}: must be an event, such as threading.Event()")
    events = [event for event in (cancel, _outer_cancel.get()) if event is not None]
    with listener_of(progress) as listener:
        logged = LoggedProgress(listener)
        if not events:
            yield logged
            return
        ending = _EndingProgress(logged, events)
        with stoppable() as stop, _linked(ending, stop):
            try:
                ending.check()
                yield ending
            except ConversionError as error:
                if not (ending.is_due and _may_be_of_the_end(error)):
                    raise
                raise _cancelled(error, resumes=resumes) from error


def cancelled_by(event: threading.Event) -> AbstractContextManager[threading.Event | None]:
    """Let an event cancel all calls inside the block, besides their own."""
    return having(_outer_cancel, event)


def _may_be_of_the_end(error: ConversionError) -> bool:
    """True unless the work would have failed as well without being cancelled: a full disk has to be heard of.

    A pause before another attempt ends with the error of the last one.
    """
    causes = [error, error.__cause__] if error.__cause__ else [error]
    return any(isinstance(each, StoppedError) or is_transient(each) for each in causes)


def _cancelled(error: ConversionError, *, resumes: bool) -> StoppedError:
    """The error of a cancelled call, with the notes on what is left."""
    stopped = StoppedError(f"cancelled; the same call {'resumes where it stopped' if resumes else 'starts over'}")
    for note in getattr(error, "__notes__", ()):
        stopped.add_note(note)
    return stopped


class _EndingProgress:
    """A listener that ends the work at its next block of bytes once an event is set, in whichever thread."""

    def __init__(self, listener: Progress, events: Sequence[threading.Event]) -> None:
        self._listener = listener
        self._events = events

    @property
    def is_due(self) -> bool:
        """True if the work has to end."""
        return any(event.is_set() for event in self._events)

    def check(self) -> None:
        """Raise StoppedError if the work has to end."""
        if self.is_due:
            raise StoppedError("stopped")

    def note(self, message: str) -> None:
        """Forward a message: also those of the work's end."""
        self._listener.note(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Forward the beginning of a phase, or end, also if the listener asks for that."""
        self.check()
        self._listener.begin(phase, total_bytes)
        self.check()

    def advance(self, count_bytes: int) -> None:
        """Forward bytes, or end."""
        self.check()
        self._listener.advance(count_bytes)


@contextmanager
def _linked(ending: _EndingProgress, stop: threading.Event) -> Iterator[None]:
    """Set `stop`, which ends pauses, soon after the work inside the block has to end."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if ending.is_due:
                stop.set()
                return

    threading.Thread(target=watch, daemon=True, name="reshard-cancel").start()
    try:
        yield
    finally:
        ended.set()
