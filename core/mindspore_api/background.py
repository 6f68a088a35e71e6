"""One file at a time is written in the background of a training, which hears of failures at its next step."""

import errno
import logging
import threading
import time
import warnings
from collections.abc import Callable

_log = logging.getLogger("reshard.mindspore")

_NOTABLE_WAIT_SECONDS = 1.0


class Background:
    """Does one piece of work at a time in a thread, and keeps failures until they are raised."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._path = ""
        self._failures: list[tuple[str, Exception]] = []
        self._warned = 0

    def start(self, path: str, work: Callable[[], None]) -> None:
        """Begin to write a file; the one before must be whole."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._failures.append((path, error))
                _log.error("checkpoint %s was not saved: %s", path, error)  # in case that no step follows

        self._path = path
        self._thread = threading.Thread(target=run, name="reshard-save")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the file is whole, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_the_next(self) -> None:
        """Wait for the file, and warn if the training loses time by that."""
        began = time.monotonic()
        self.wait()
        self.warn_of_failures()
        seconds = time.monotonic() - began
        if seconds >= _NOTABLE_WAIT_SECONDS:
            warnings.warn(
                f"{self._path} was still being saved when the next checkpoint was due: training waited "
                f"{seconds:.1f} s; save less often, or to a faster storage",
                stacklevel=5,
            )

    def warn_of_failures(self) -> None:
        """Warn of each failure once."""
        while self._warned < len(self._failures):
            path, error = self._failures[self._warned]
            self._warned += 1
            warnings.warn(f"checkpoint {path} was not saved: {error}", RuntimeWarning, stacklevel=4)

    def raise_failures(self) -> None:
        """Raise one error for all files that were not saved.

        Raises:
            OSError: files could not be written.
        """
        if not self._failures:
            return
        failures, self._failures, self._warned = self._failures, [], 0
        lines = "\n".join(f"  {path}: {error}" for path, error in failures)
        first = failures[0][1]
        number = first.errno if isinstance(first, OSError) else None
        raise OSError(number or errno.EIO, f"{len(failures)} checkpoints were not saved:\n{lines}") from first
