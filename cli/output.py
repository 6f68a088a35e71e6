"""How things are printed: errors, tables, JSON. Nothing wraps or reads brackets as markup."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from core.runtime.texts import utf8_text

if TYPE_CHECKING:
    from pydantic import BaseModel

MOST_ROWS_IN_PIPES = 16


def print_error(message: str) -> None:
    """Tells on stderr what is wrong."""
    click.echo(f"reshard: error: {message}", err=True)


def print_json(document: "BaseModel | dict[str, Any]") -> None:
    """A result as JSON on stdout."""
    if isinstance(document, dict):
        # a file's name that is no text is told as JSON's own escapes
        click.echo(utf8_text(json.dumps(document, indent=2, ensure_ascii=False)))
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
