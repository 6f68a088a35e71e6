"""Printing errors, tables and JSON, without wrapping or markup.

Names in the output are not trusted: control characters and secrets in URLs are replaced before text reaches the
terminal. JSON uses its own escapes.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from reshard.core.runtime.secrets import scrubbed
from reshard.core.runtime.wording import printable, printable_lines

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_ROWS_IN_PIPES = 16


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line, which may contain foreign names."""
    click.echo(printable(scrubbed(text)), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    """Print several lines; line breaks in names must be escaped before."""
    click.echo(printable_lines(scrubbed(text)), err=err)


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
    """Print aligned lines of a name and its text."""
    rows = list(facts)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_line(f"{name:<{width}}  {text}")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """Print a table as wide as its contents; the columns in `right` are right-aligned."""
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
    """True if a result should include a table: always on a terminal, in logs only a short one."""
    return row_count <= MAX_ROWS_IN_PIPES or sys.stdout.isatty()
