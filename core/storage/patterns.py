"""Path patterns with `{rank}`: the names that one part matches, and the relation of a path to all matches.

A path without `{rank}` is a pattern that matches only itself.
"""

import re
from enum import Enum, auto

RANK_FIELD = "{rank}"

# numbers as MindSpore writes them, so that a number has one spelling and a step one file; int() refuses far longer ones
NUMBER = r"(?:0|[1-9][0-9]{0,17})"


def spelled_for(spelling: str, rank: int) -> str:
    """Return the prefix that a spelling means on one rank."""
    return spelling.replace(RANK_FIELD, str(rank))


class Relation(Enum):
    """The relation of a path to the paths that a pattern can match."""

    ABOVE = auto()
    AT = auto()
    INSIDE = auto()


def matched_rank(part: str, name: str) -> int | None:
    """Return the rank that makes a pattern's part with `{rank}` equal to a name; None if none does."""
    first, *rest = (re.escape(text) for text in part.split(RANK_FIELD))
    match = re.fullmatch(f"{first}(?P<rank>{NUMBER})" + "(?P=rank)".join(rest), name)
    return None if match is None else int(match["rank"])


def relation_of(place: str, pattern: str) -> Relation | None:
    """Return the relation of the path `place` to the paths that `pattern` can match; None if they are apart.

    A folder with a rank's number in its name counts as matched, whichever of its files the pattern names.
    """
    names, parts = _parts(place), _parts(pattern)
    rank: int | None = None
    for name, part in zip(names, parts, strict=False):
        if RANK_FIELD in part and rank is None:
            rank = matched_rank(part, name)
            if rank is None:
                return None
        elif name != (part if rank is None else spelled_for(part, rank)):
            return None if rank is None else Relation.INSIDE
    if len(names) < len(parts):
        return Relation.ABOVE
    return Relation.AT if len(names) == len(parts) else Relation.INSIDE


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
