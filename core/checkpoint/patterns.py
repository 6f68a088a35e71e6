"""Paths with `{rank}` in them: which names one part matches, and how a place lies to all that a pattern can match.

A path without `{rank}` is a pattern that matches itself alone.
"""

import re
from enum import Enum, auto

from core.checkpoint.names import NUMBER, RANK_FIELD, spelled_for


class Lies(Enum):
    """How a place lies to what a pattern can match."""

    ABOVE = auto()
    AT = auto()
    INSIDE = auto()


def matched_rank(part: str, name: str) -> int | None:
    """The rank for which a part of a pattern that has `{rank}` in it gives a name; None if there is none."""
    first, *rest = (re.escape(text) for text in part.split(RANK_FIELD))
    match = re.fullmatch(f"{first}(?P<rank>{NUMBER})" + "(?P=rank)".join(rest), name)
    return None if match is None else int(match["rank"])


def lies(place: str, pattern: str) -> Lies | None:
    """How a place lies to what a pattern can match, both of them paths; None if they are apart.

    A folder that one rank's number is in the name of belongs to what is matched, whatever of it the pattern names.
    """
    names, parts = _parts(place), _parts(pattern)
    rank: int | None = None
    for name, part in zip(names, parts, strict=False):
        if RANK_FIELD in part and rank is None:
            rank = matched_rank(part, name)
            if rank is None:
                return None
        elif name != (part if rank is None else spelled_for(part, rank)):
            return None if rank is None else Lies.INSIDE
    if len(names) < len(parts):
        return Lies.ABOVE
    return Lies.AT if len(names) == len(parts) else Lies.INSIDE


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
