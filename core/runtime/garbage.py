"""Python's garbage collector, asked to come by less often."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (50_000, 20, 100)
"""Thresholds of `gc.set_threshold`: new objects per young collection, young per middle, middle per full ones."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Lets the collector look for garbage after 50,000 new objects, not after 700, while the block runs.

    Plans and records are millions of small objects which all survive. Each full collection visits all of them: nine
    took a third of the time of a conversion of 60,000 small parameters, and freed nothing.
    """
    before = gc.get_threshold()
    if not before[0]:  # switched off
        yield
        return
    gc.set_threshold(*map(max, before, _THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
