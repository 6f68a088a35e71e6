"""Trying again what may succeed later: transient failures of a storage, with growing pauses."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from core.errors import is_transient

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 1.0

Result = TypeVar("Result")


def with_retries(work: Callable[[], Result], told: Callable[[str], None]) -> Result:
    """The result of `work`, repeated after transient failures; `told` hears of each repetition."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except Exception as error:
            if not is_transient(error):
                raise
            # jitter: workers that failed together should not come back together
            pause = FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
            told(f"{error}; trying again in {pause:.1f} s (attempt {attempt + 1} of {ATTEMPTS})")
            time.sleep(pause)
    return work()
