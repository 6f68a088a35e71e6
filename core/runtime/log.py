"""The logger `reshard`: notes and progress at level INFO, details for operators at level DEBUG.

Like any library's, it writes nothing until the program configures logging. It has no handler of its own, not even a
NullHandler: warnings of `reshard.elastic` reach stderr in programs that configure none. Messages are printable and
carry no secrets.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.runtime.wording import seconds_text
from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed

LOGGER = logging.getLogger("reshard")


def log(level: int, message: str) -> None:
    """Log a message, which may contain foreign names."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, "%s", printable_lines(scrubbed(message)))


def detail(message: str) -> None:
    """Log what only operators want to know."""
    log(logging.DEBUG, message)


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Log how long a phase of the work took, unless it fails."""
    started = time.monotonic()
    yield
    detail(f"{phase}: {seconds_text(time.monotonic() - started)}")
