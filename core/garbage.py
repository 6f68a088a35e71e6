"""Python's garbage collector, asked to come by less often."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS_BETWEEN_COLLECTIONS = 10_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Lets the collector look for garbage after 10,000 new objects, not after 700, while the block runs.

    Plans and records are hundreds of thousands of small objects which all live on: looking at them again and again took
    a third of the time of a conversion of 20,000 small parameters, and freed nothing.
    """
    youngest, *older = gc.get_threshold()
    if not 0 < youngest < _NEW_OBJECTS_BETWEEN_COLLECTIONS:  # 0: switched off
        yield
        return
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS, *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
