"""What a run tells of itself while it works, and how it is told to stop."""

import threading

from prefect.logging import get_run_logger

from core.progress import Progress, advancing


class RunProgress:
    """Passes progress on; notes also go to the run's log. Work that advances after `stop` ends with an error.

    A thread cannot be interrupted from outside: this is how one that writes a rank learns that the run is over.
    """

    def __init__(self, listener: Progress, stopped: threading.Event) -> None:
        self._listener = listener
        self._stopped = stopped
        self._advance = advancing(listener, stopped)

    def note(self, message: str) -> None:
        """Something worth a line happened."""
        get_run_logger().info(message)
        self._listener.note(message)

    def begin(self, total_bytes: int) -> None:
        """The long part begins: this much is to be written and read back."""
        self._listener.begin(total_bytes)

    def advance(self, count_bytes: int) -> None:
        """So much more is done.

        Raises:
            ConversionError: the run was told to stop.
        """
        self._advance(count_bytes)

    def stop(self) -> None:
        """Ends all work of the run at its next block."""
        self._stopped.set()
