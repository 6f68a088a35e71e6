"""How sizes, durations, ranks and counts are said to people."""

import math
from collections.abc import Iterable

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


def quoted(text: str) -> str:
    """A name or an expression in quotes, as it was written: backslashes are not doubled."""
    return f"'{text}'" if text.isprintable() and "'" not in text else repr(text)


def counted(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
