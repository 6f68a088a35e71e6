"""How things are printed: errors, tables, JSON. Nothing wraps or reads brackets as markup.

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

MOST_ROWS_IN_PIPES = 16


def print_line(text: str, *, err: bool = False) -> None:
    """Prints one line that may contain foreign names."""
    click.echo(printable(scrubbed(text)), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    """Prints several such lines; line breaks in names must be escaped before."""
    click.echo(printable_lines(scrubbed(text)), err=err)


def print_error(message: str) -> None:
    """Prints an error message on stderr."""
    print_lines(f"reshard: error: {message}", err=True)


def print_json(document: "BaseModel | dict[str, Any]") -> None:
    """Prints a result as JSON on stdout, with control characters in JSON's own escapes."""
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
    """Lines of a name and what is to be said of it, aligned."""
    rows = list(facts)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_line(f"{name:<{width}}  {text}")


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
