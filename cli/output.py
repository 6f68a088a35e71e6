"""Printing errors, facts, tables and JSON, without markup.

Names in the output are not trusted: control characters and secrets in URLs are replaced before text reaches the
terminal. JSON uses its own escapes.

On a terminal, text is wrapped between words, and tables are made as narrow as the terminal. Pipes and files get all of
every line.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from reshard.core.reports.blocks import Block, Facts, Table
from reshard.core.reports.cells import ELLIPSIS
from reshard.core.reports.plain_text import Paper, lines_of, wrapped
from reshard.core.text.printing import printable, printable_lines
from reshard.core.text.secrets import scrubbed

if TYPE_CHECKING:
    from pydantic import BaseModel

    from reshard.core.reports.report import Report


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


def print_document(text: str) -> None:
    """Print a JSON document as it is; on a terminal with control characters escaped."""
    click.echo("\n".join(map(_json_line, text.split("\n"))) if sys.stdout.isatty() else text, nl=False)


def _json_line(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def print_blocks(blocks: Iterable[Block]) -> None:
    """Print a report's content."""
    paper = Paper(width=terminal_width(sys.stdout), whole="--json", ellipsis=_ellipsis(), is_short=sys.stdout.isatty())
    for block in blocks:
        for line in lines_of(block, paper):
            click.echo(line)


def print_report(report: "Report", *, as_json: bool) -> None:
    """Print a result, as JSON or as text."""
    if as_json:
        print_json(report)
    else:
        print_blocks(report.blocks())


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print aligned lines of a name and its text; on a terminal the text is wrapped within its column."""
    print_blocks([Facts(list(facts))])


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[str] = (),
    optional: Sequence[str] = (),
    keys: Sequence[str] = (),
) -> None:
    """Print a table, with the attributes of `Table`."""
    print_blocks([Table(headers, list(rows), right=list(right), optional=optional, keys=keys)])


def terminal_width(stream: IO[str]) -> int | None:
    """Return the number of columns of a stream's terminal; None for pipes and files, which have no width."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _wrapped_for(text: str, err: bool) -> str:
    """Wrap lines for the terminal of stdout or stderr, if it is one."""
    width = terminal_width(sys.stderr if err else sys.stdout)
    return "\n".join(each for line in text.split("\n") for each in wrapped(line, width)) if width else text


def _ellipsis() -> str:
    try:
        ELLIPSIS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ".."
    return ELLIPSIS
