"""How things are printed: errors, tables, sizes, ranks, JSON. Nothing wraps or reads brackets as markup."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

MOST_ROWS_IN_PIPES = 16
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def print_error(message: str) -> None:
    """Tells on stderr what is wrong."""
    click.echo(f"reshard: error: {message}", err=True)


def print_json(document: "BaseModel | dict[str, Any]") -> None:
    """A result as JSON on stdout."""
    if isinstance(document, dict):
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo(document.model_dump_json(indent=2))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Lines of a name and what is to be said of it, aligned."""
    rows = list(facts)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo(f"{name:<{width}}  {text}")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """A table as wide as its contents; the columns named in `right` are aligned to the right."""
    lines = [list(headers), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    to_right = [header in set(right) for header in headers]
    for line in lines:
        cells = (
            cell.rjust(width) if aligned else cell.ljust(width)
            for cell, width, aligned in zip(line, widths, to_right, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def wants_table(row_count: int) -> bool:
    """Whether a table beside a result is welcome: to a person it is, in a log only a short one."""
    return row_count <= MOST_ROWS_IN_PIPES or sys.stdout.isatty()


def printable(text: str) -> str:
    """Text from a file, with what would move a terminal's cursor shown as escapes."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


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


def counted(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
