"""Suggests the place that was meant, where a path that a user gave does not exist."""

import os
from contextlib import suppress

from reshard.core.errors import StorageError
from reshard.core.storage.listing import exists, names_in
from reshard.core.storage.urls import Location

_LEAST_LIKENESS = 0.6
_MAX_NAMES = 10_000
"""Comparing more names takes seconds."""


def did_you_mean(location: Location) -> str:
    """Return an addition to a message about a place: the most similar name beside what does not exist of it.

    Empty if the place exists, or nothing beside it is similar. Extensions decide only between equally similar names:
    most neighbors share them.
    """
    with suppress(StorageError):  # the message is about another error, which is not to be hidden
        near = _near(location)
        return f"; did you mean {near}?" if near else ""
    return ""


def _near(location: Location) -> Location | None:
    if exists(location):
        return None
    # a store's prefixes would be asked for one by one
    while location.store.is_near and location.parent.path != location.path and not exists(location.parent):
        location = location.parent
    names = names_in(location.parent)
    if len(names) > _MAX_NAMES:
        return None
    from difflib import SequenceMatcher

    stem, extension = os.path.splitext(location.name.lower())
    matcher = SequenceMatcher(b=stem)
    best, likeness = "", (_LEAST_LIKENESS, False)
    for name in names:
        other, its_extension = os.path.splitext(name.lower())
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= likeness[0]:
            likeness, best = max((likeness, best), ((matcher.ratio(), its_extension == extension), name))
    return location.parent.child(best) if best else None
