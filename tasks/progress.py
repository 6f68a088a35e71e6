"""Progress of a run, and the signal that stops it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from reshard.core.runtime.progress import Progress, advancing
from reshard.core.runtime.wording import size_text
from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed

PROGRESS_KEY = "run-progress"
_SHOWN_EVERY_SECONDS = 2.0
"""An update takes 11 ms of the server's time, which also records task runs."""


class RunProgress:
    """Forwards progress; notes also go to the run's log. Work that advances after `stop` ends with an error.

    A thread cannot be interrupted from outside: the error ends a thread that writes a rank of a stopped run.
    """

    def __init__(self, listener: Progress, stopped: threading.Event) -> None:
        self._listener = listener
        self._stopped = stopped
        self._advance = advancing(listener, stopped)
        self._bar = _Bar()
        # the run's logger, also in tasks: a task's own logger is for Prefect's messages
        self._logger = get_run_logger()

    def note(self, message: str) -> None:
        """Log a line."""
        self._logger.info("%s", printable_lines(scrubbed(message)))
        self._listener.note(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Begin a phase of a number of bytes, or of an unknown one."""
        self._listener.begin(phase, total_bytes)
        self._bar.begin(phase, total_bytes)

    def advance(self, count_bytes: int) -> None:
        """Count bytes as done."""
        self._advance(count_bytes)
        self._bar.advance(count_bytes)

    def stop(self) -> None:
        """End all work of the run at its next block."""
        self._stopped.set()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress of a long part that begins inside the block in the UI: 100 at an end without error."""
        try:
            yield
        except BaseException:
            self._bar.end("Stopped at")
            raise
        self._bar.end("Done:", complete=True)


class _Bar:
    """The progress artifact of a run, updated by its own thread: no work waits for the server.

    If the server refuses an update, the run's log gets one warning.
    """

    def __init__(self) -> None:
        self._phase = ""
        self._total_bytes = 0
        self._done_bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._artifact: UUID | None = None
        self._thread: threading.Thread | None = None

    def begin(self, phase: str, total_bytes: int) -> None:
        if not total_bytes:  # phases of unknown length are short: the bar stays where it is
            return
        with self._lock:
            self._phase, self._total_bytes, self._done_bytes = phase, total_bytes, 0
        if self._thread is not None:
            return
        # the context leads to the run, its server and its logger
        self._thread = threading.Thread(target=copy_context().run, args=(self._keep_up,), daemon=True)
        self._thread.start()

    def advance(self, count_bytes: int) -> None:
        with self._lock:
            self._done_bytes += count_bytes

    def end(self, label: str, complete: bool = False) -> None:
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        # planned and done bytes may differ by headers, and by ranks that were tried twice
        self._show(label, 100.0 if complete else self._percent())

    def _keep_up(self) -> None:
        shown = ("", -1)
        while True:
            if (self._phase, self._done_bytes) != shown:
                shown = (self._phase, self._done_bytes)
                if not self._show("", self._percent()):
                    return
            if self._ended.wait(_SHOWN_EVERY_SECONDS):
                return

    def _percent(self) -> float:
        return min(99.0, round(100 * self._done_bytes / self._total_bytes, 1))

    def _show(self, label: str, percent: float) -> bool:
        done = min(self._done_bytes, self._total_bytes) if percent < 100 else self._total_bytes
        described = f"{label} {self._phase}, {size_text(done)} of {size_text(self._total_bytes)}".strip()
        try:
            if self._artifact is None:
                self._artifact = create_progress_artifact(percent, key=PROGRESS_KEY, description=described)  # type: ignore[assignment]
            else:
                update_progress_artifact(self._artifact, percent, description=described)
        except (httpx.HTTPError, PrefectException) as error:
            get_run_logger().warning("the progress could not be shown: %s", error)
            return False
        return True
