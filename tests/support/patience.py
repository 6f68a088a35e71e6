"""Waiting for what comes, however busy the machine is."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 600.0
"""A guard against waiting forever; even on a busy machine nothing takes a fraction of it."""
_LONGEST_PAUSE_SECONDS = 0.2

Answer = TypeVar("Answer")


def until(found: Callable[[], Answer | None], problem: str) -> Answer:
    """What `found` returns once that is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause_seconds = 0.005
    while not (answer := found()):
        assert time.monotonic() < deadline, f"after {PATIENCE_SECONDS:.0f} s {problem}"
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
    return answer
