"""Formats sizes, durations, ranks, counts and foreign names for people.

Names of files and parameters are not trusted: `reshard.core.text.printing` says how they are shown.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from reshard.core.text.printing import printable

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count_bytes: float) -> str:
    """Format bytes as `1.5 GiB`; exact below 1 KiB."""
    if count_bytes < 1024:
        return f"{count_bytes:.0f} B"
    exponent = min(int(math.log(count_bytes, 1024)), len(_UNITS))
    return f"{count_bytes / 1024**exponent:.1f} {_UNITS[exponent - 1]}"


def seconds_text(seconds: float) -> str:
    """Format a duration as `3.2 s`, `4 min 05 s` or `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def ranks_text(ranks: Iterable[int]) -> str:
    """Format ascending ranks as `0-3,7`, as options take them."""
    return _format_spans(_spans(ranks))


def _spans(ranks: Iterable[int]) -> list[list[int]]:
    """Each run of consecutive ranks: its first and its last."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return spans


def _format_spans(spans: Iterable[Sequence[int]]) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def listed_ranks(ranks: Iterable[int], limit: int) -> str:
    """Format ascending ranks as `0-3,7`; beyond `limit` numbers and ranges, `and N more` ranks."""
    spans = _spans(ranks)
    more = sum(last - first + 1 for first, last in spans[limit:])
    return f"{_format_spans(spans[:limit])} and {more} more" if more else _format_spans(spans)


def utf8_text(text: str) -> str:
    """Escape what UTF-8 cannot hold, for documents and databases, where `printable` would change more than that."""
    return text.encode(errors="backslashreplace").decode()


def html_text(text: str) -> str:
    """Escape a text for HTML or SVG; printable, never markup."""
    from html import escape

    return escape(printable(text))


class NameText(str):
    """The name of a file or a directory: exact wherever it is used, on one line in messages.

    Formatting, as in an f-string, makes it printable; every other use sees the exact name.
    """

    __slots__ = ()

    def __format__(self, format_spec: str) -> str:
        """Format as `printable` does."""
        return format(printable(str(self)), format_spec)


def shortened(text: str, limit: int = 80) -> str:
    """Return a text, or its first `limit` characters and an ellipsis."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def shortened_in_middle(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters: a longer one loses its middle to an ellipsis."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def moment_text(moment: datetime) -> str:
    """Format a moment as `2026-11-26 17:37 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def quoted(text: str) -> str:
    """Quote a name or an expression verbatim: backslashes are not doubled."""
    return f"'{text}'" if text.isprintable() and "'" not in text else repr(text)


def counted(count: int, noun: str) -> str:
    """Format as `1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


MAX_LISTED = 10
"""The most items that a message lists; missing ranks are listed in full."""


def rank_names(ranks: Iterable[int], limit: int | None = None) -> str:
    """Format as `rank_0, rank_3`; beyond `limit` ranks, `and N more`."""
    names = [f"rank_{rank}" for rank in sorted(ranks)]
    return listed(names, limit)


def listed(items: Sequence[str], limit: int | None = MAX_LISTED, separator: str = ", ") -> str:
    """Join items by a separator; beyond `limit` items, `and N more`."""
    shown = separator.join(map(printable, items[:limit]))
    return shown if limit is None or len(items) <= limit else f"{shown} and {len(items) - limit} more"
