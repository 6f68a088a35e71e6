"""Progress as lines: each note at once, and the state every few seconds."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from reshard.core.runtime.log import log
from reshard.core.runtime.progress import Progress, SilentProgress
from reshard.core.runtime.wording import seconds_text, size_text

LINE_EVERY_SECONDS = 10.0


def state_text(done_bytes: int, total_bytes: int, seconds: float) -> str:
    """Format the progress after so many seconds: `25 %, 1.0 GiB of 4.0 GiB, 100.0 MiB/s, 31.4 s left`."""
    # retried bytes are counted twice
    done_bytes = min(done_bytes, total_bytes)
    share = done_bytes * 100 // total_bytes if total_bytes else 100
    text = f"{share} %, {size_text(done_bytes)} of {size_text(total_bytes)}"
    if not done_bytes or seconds <= 0:
        return text
    rate = done_bytes / seconds
    return f"{text}, {size_text(rate)}/s, {seconds_text((total_bytes - done_bytes) / rate)} left"


class ProgressLines:
    """Says each note, the state of a phase every few seconds, and the end of a phase that took long; thread-safe."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._phase = ""
        self._done_bytes = 0
        self._total_bytes = 0
        self._began = self._said = clock()

    def note(self, message: str) -> None:
        """Say a message."""
        with self._lock:
            self._say(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Begin a phase, and start counting at zero of `total_bytes`."""
        with self._lock:
            self._end()
            self._phase = phase
            self._done_bytes = 0
            self._total_bytes = total_bytes

    def advance(self, count_bytes: int) -> None:
        """Count bytes; say the state if the last line is old enough."""
        with self._lock:
            self._done_bytes += count_bytes
            now = self._clock()
            if now - self._said >= LINE_EVERY_SECONDS and self._total_bytes:
                self._said = now
                state = state_text(self._done_bytes, self._total_bytes, now - self._began)
                self._say(f"{self._phase}: {state}")

    def end(self) -> None:
        """End the last phase."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        now = self._clock()
        seconds = now - self._began
        if self._phase and seconds >= LINE_EVERY_SECONDS:
            rate = self._done_bytes / seconds
            done = f"{size_text(self._done_bytes)}, {size_text(rate)}/s, " if self._done_bytes else ""
            self._say(f"{self._phase}: done, {done}{seconds_text(seconds)}")
        self._phase = ""
        self._began = self._said = now


class LoggedProgress:
    """Logs progress as lines, and forwards it to a listener if there is one; thread-safe."""

    def __init__(self, listener: Progress | None = None) -> None:
        self._lines = ProgressLines(partial(log, logging.INFO))
        self._listener = listener or SilentProgress()

    def note(self, message: str) -> None:
        """Log and forward a message."""
        self._lines.note(message)
        self._listener.note(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Forward the beginning of a phase."""
        self._lines.begin(phase, total_bytes)
        self._listener.begin(phase, total_bytes)

    def advance(self, count_bytes: int) -> None:
        """Count and forward bytes."""
        self._lines.advance(count_bytes)
        self._listener.advance(count_bytes)
