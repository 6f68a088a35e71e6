"""Formats sizes, durations, ranks, counts and foreign names for people.

Names of files and parameters are not trusted: control characters and lone surrogates are shown as escapes wherever text
leaves the program. `printable` is for a name, `printable_lines` for a message of ours that may contain names.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count_bytes: float) -> str:
    """Bytes in a unit that is easy to read: `1.5 GiB`; exact below 1 KiB."""
    if count_bytes < 1024:
        return f"{count_bytes:.0f} B"
    exponent = min(int(math.log(count_bytes, 1024)), len(_UNITS))
    return f"{count_bytes / 1024**exponent:.1f} {_UNITS[exponent - 1]}"


def seconds_text(seconds: float) -> str:
    """A duration that is easy to read: `3.2 s`, `4 min 05 s`, `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def ranks_text(ranks: Iterable[int]) -> str:
    """Ascending ranks as `0-3,7`, the way that --ranks reads them."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def printable(text: str) -> str:
    """Format on one line, with escapes for control characters, line breaks and lone surrogates."""
    return text if text.isprintable() else "".join(map(_printable_character, text))


def printable_lines(text: str) -> str:
    """Format a text of several lines; only its line breaks stay as they are."""
    return "\n".join(map(printable, text.split("\n")))


def _printable_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def utf8_text(text: str) -> str:
    """Escape what UTF-8 cannot hold, for documents and databases, where `printable` would change more than that."""
    return text.encode(errors="backslashreplace").decode()


def html_text(text: str) -> str:
    """Escape a text for HTML or SVG; printable, never markup."""
    return escape(printable(text))


class NameText(str):
    """The name of a file or a directory: exact wherever it is used, on one line in messages.

    Formatting, as in an f-string, makes it printable; every other use sees the exact name.
    """

    __slots__ = ()

    def __format__(self, format_spec: str) -> str:
        """Format as `printable` does."""
        return format(printable(str(self)), format_spec)


def quoted(text: str) -> str:
    """A name or an expression in quotes, as it was written: backslashes are not doubled."""
    return f"'{text}'" if text.isprintable() and "'" not in text else repr(text)


def counted(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# what a message lists at most; ranks that are missing are always listed whole
MAX_LISTED = 10


def rank_names(ranks: Iterable[int], limit: int | None = None) -> str:
    """`rank_0, rank_3`; of more than `limit` ranks the first, and how many there are beyond."""
    names = [f"rank_{rank}" for rank in sorted(ranks)]
    return listed(names, limit)


def listed(items: Sequence[str], limit: int | None = MAX_LISTED, separator: str = ", ") -> str:
    """Items joined by a separator; of more than `limit` the first, and how many there are beyond."""
    shown = separator.join(map(printable, items[:limit]))
    return shown if limit is None or len(items) <= limit else f"{shown} and {len(items) - limit} more"


def listed_lines(items: Sequence[str], limit: int = 20) -> list[str]:
    """Items for lines of their own; of more than `limit` the first, and a line that counts the rest."""
    more = len(items) - limit
    return [*items[:limit], f"and {more} more"] if more > 0 else list(items)
