"""Printing errors, facts, tables and JSON, without markup.

Names in the output are not trusted: control characters and secrets in URLs are replaced before text reaches the
terminal. JSON uses its own escapes.

On a terminal, text is wrapped between words, and tables are made as narrow as the terminal: long texts are shortened in
the middle, then columns are left out. Numbers are never cut. Pipes and files get all of every line.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any

import click

from reshard.core.text.printing import printable, printable_lines
from reshard.core.text.secrets import scrubbed

if TYPE_CHECKING:
    from pydantic import BaseModel

_COLUMN_GAP = 2
_READABLE_WIDTH = 28
"""A text is not shortened further while a column can be left out instead."""
_LEAST_WIDTH = 8
_LEAST_WRAPPED = 20
"""Narrower columns of text are left to the terminal to wrap."""
_DIGIT = re.compile(r"\d")
_NUMBERS = re.compile(r"\d[\d,-]*")


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line, which may contain foreign names."""
    click.echo(_wrapped_for(printable(scrubbed(text)), err), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    """Print several lines; line breaks in names must be escaped before."""
    click.echo(_wrapped_for(printable_lines(scrubbed(text)), err), err=err)


def print_error(message: str) -> None:
    """Print an error message on stderr."""
    print_lines(f"reshard: error: {message}", err=True)


def print_json(document: "BaseModel | dict[str, Any]") -> None:
    """Print a result as JSON on stdout; control characters are escaped."""
    if isinstance(document, dict):
        text = json.dumps(document, indent=2, ensure_ascii=False)
    else:
        text = document.model_dump_json(indent=2)
    click.echo("\n".join(map(_json_line, text.split("\n"))))


def _json_line(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print aligned lines of a name and its text; on a terminal the text is wrapped within its column."""
    rows = list(facts)
    width = max(len(name) for name, _ in rows)
    room = terminal_width(sys.stdout)
    for name, text in rows:
        line = printable(scrubbed(f"{name:<{width}}  {text}"))
        click.echo("\n".join(wrapped(line, room, width + _COLUMN_GAP)))


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = (), optional: Sequence[str] = ()
) -> None:
    """Print a table.

    Args:
        headers: names of the columns.
        rows: a cell for each column.
        right: right-aligned columns; their cells are never shortened.
        optional: columns to leave out on a narrow terminal, the first one first.
    """
    lines = [list(headers), *([printable(scrubbed(str(cell))) for cell in row] for row in rows)]
    widths = {
        header: max(map(_cells, column)) for header, column in zip(headers, zip(*lines, strict=True), strict=True)
    }
    to_right = frozenset(right)
    width = terminal_width(sys.stdout)
    shown = _fitted(widths, to_right, optional, width) if width else widths
    for line in lines:
        cells = zip(headers, line, strict=True)
        aligned = (_aligned(cell, shown[header], header in to_right) for header, cell in cells if header in shown)
        click.echo((" " * _COLUMN_GAP).join(aligned).rstrip())
    if left_out := [header for header in optional if header in widths and header not in shown]:
        print_aside(f"no room for: {', '.join(left_out)}; --json has all")


def print_more(count: int, what: str = "") -> None:
    """Print how many rows a table leaves out, if any."""
    if count > 0:
        click.echo(f"and {count} more{what}; --json lists all")


def print_aside(text: str) -> None:
    """Print a remark on a table, in parentheses."""
    click.echo("\n".join(wrapped(f"({text})", terminal_width(sys.stdout), 1)))


def terminal_width(stream: IO[str]) -> int | None:
    """Return the number of columns of a stream's terminal; None for pipes and files, which have no width."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(line: str, width: int | None, indent: int | None = None) -> list[str]:
    """Wrap a line between words; further lines are indented, by default as the line is.

    Words that are longer than a line, such as paths, stay whole, so that they can be copied.
    """
    if indent is None:
        indent = len(line) - len(line.lstrip())
    if not width or _cells(line) <= width or width - indent < _LEAST_WRAPPED:
        return [line]
    first = line[:indent]
    lines = wrap(
        line[indent:], width - indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return [f"{' ' * indent if number else first}{text}" for number, text in enumerate(lines)]


def shortened(text: str, width: int) -> str:
    """Shorten a text in its middle to a width; of a list of numbers, whole ones are left out."""
    if _cells(text) <= width:
        return text
    mark = _ellipsis()
    if _NUMBERS.fullmatch(text):
        first, last = text.split(","), text.rpartition(",")[2]
        while len(first) > 1:
            first.pop()
            if len(shorter := f"{','.join(first)},{mark},{last}") <= width:
                return shorter
        return text
    surplus = _cells(text) - width + len(mark)
    for count in range(surplus if text.isascii() else surplus // 2, len(text)):
        start = _cut(text, count)
        shorter = f"{text[:start]}{mark}{text[start + count :]}"
        if _cells(shorter) <= width:
            return shorter
    return mark


def _cut(text: str, count: int) -> int:
    """Return where to take so many characters out of a text: near its middle, and no digits if possible."""
    middle = (len(text) - count) // 2
    starts = sorted(range(len(text) - count + 1), key=lambda start: abs(start - middle))
    return next((start for start in starts if not _DIGIT.search(text, start, start + count)), middle)


def _fitted(widths: dict[str, int], right: frozenset[str], optional: Sequence[str], width: int) -> dict[str, int]:
    """Return the widths of the columns that fit into a terminal's width."""
    droppable = [header for header in optional if header in widths]
    for count in range(len(droppable) + 1):
        kept = {header: each for header, each in widths.items() if header not in droppable[:count]}
        least = _LEAST_WIDTH if count == len(droppable) else _READABLE_WIDTH
        room = width - _COLUMN_GAP * (len(kept) - 1)
        shrinkable = [header for header in kept if header not in right]
        while sum(kept.values()) > room and shrinkable:
            widest = max(shrinkable, key=kept.__getitem__)
            if kept[widest] <= max(least, len(widest)):
                shrinkable.remove(widest)
            else:
                kept[widest] -= 1
        if sum(kept.values()) <= room:
            return kept
    return kept


def _wrapped_for(text: str, err: bool) -> str:
    """Wrap lines for the terminal of stdout or stderr, if it is one."""
    width = terminal_width(sys.stderr if err else sys.stdout)
    return "\n".join(each for line in text.split("\n") for each in wrapped(line, width)) if width else text


def _aligned(cell: str, width: int, to_right: bool) -> str:
    text = shortened(cell, width)
    padding = " " * (width - _cells(text))
    return f"{padding}{text}" if to_right else f"{text}{padding}"


def _cells(text: str) -> int:
    """Return the number of a terminal's cells that a text fills."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _ellipsis() -> str:
    try:
        "…".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ".."
    return "…"
