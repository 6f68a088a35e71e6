"""Progress of a long command on stderr: a bar on a terminal, periodic lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reshard.cli.output import print_lines
from reshard.core.runtime.progress import Progress
from reshard.core.runtime.wording import seconds_text, size_text

LINE_EVERY_SECONDS = 10.0


@contextmanager
def shown_progress(verb: str) -> Iterator[Progress]:
    """Show the progress of the block; `verb` names its work, such as `converting`."""
    if not sys.stderr.isatty():
        yield LineProgress(verb)
        return
    from reshard.cli.bar import Bar

    with Bar(verb) as bar:
        yield bar


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


class LineProgress:
    """Prints plain lines for logs: each note, and the state every few seconds; thread-safe."""

    def __init__(self, verb: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb = verb
        self._clock = clock
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._total_bytes = 0
        self._began = self._printed = clock()

    def note(self, message: str) -> None:
        """Print a message."""
        with self._lock:
            self._print(message)

    def begin(self, total_bytes: int) -> None:
        """Start counting at zero of `total_bytes`."""
        with self._lock:
            self._done_bytes = 0
            self._total_bytes = total_bytes
            self._began = self._printed = self._clock()

    def advance(self, count_bytes: int) -> None:
        """Count bytes; print the state if the last line is old enough."""
        with self._lock:
            self._done_bytes += count_bytes
            now = self._clock()
            if now - self._printed >= LINE_EVERY_SECONDS:
                self._printed = now
                self._print(f"{self._verb}: {state_text(self._done_bytes, self._total_bytes, now - self._began)}")

    def _print(self, message: str) -> None:
        print_lines(f"reshard: {message}", err=True)
