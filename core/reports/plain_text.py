"""Plain text: facts, tables and whole reports as lines.

Names are not trusted: control characters and secrets in URLs are replaced. For a terminal, text is wrapped between
words, and tables are made as narrow as it is: long texts are shortened in the middle, then columns are left out.
Numbers are never cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from reshard.core.reports.blocks import Block, Facts, Line, Listing, More, Table
from reshard.core.reports.cells import ELLIPSIS, cell_count, shortened
from reshard.core.runtime.records import Record
from reshard.core.text.printing import printable
from reshard.core.text.secrets import scrubbed

_COLUMN_GAP = 2
_READABLE_WIDTH = 28
"""A text is not shortened further while a column can be left out instead."""
_LEAST_WIDTH = 8
_LEAST_WRAPPED = 20
"""Narrower columns of text are left to the terminal to wrap."""


class Paper(Record):
    """What text is laid out for.

    Attributes:
        width: columns; None: lines may have any length.
        whole: where all of a shortened report is.
        ellipsis: what takes the place of what is cut out.
        is_short: tables that may be short are.
    """

    width: int | None = None
    whole: str = "to_dict()"
    ellipsis: str = ELLIPSIS
    is_short: bool = True


def lines_of(block: Block, paper: Paper) -> Iterator[str]:
    """Yield the lines of a block."""
    match block:
        case Line():
            yield from wrapped(_shown(block.text), paper.width)
        case Facts():
            yield from _facts_lines(block.rows, paper)
        case Listing():
            for row in block.rows:
                yield from wrapped(_shown(block.form.format(*row)), paper.width)
            yield from _more_line(block.more, "", paper)
        case Table():
            is_short = block.short and (paper.is_short or block.is_short_in_files)
            yield from _table_lines(block.short if block.short and is_short else block, paper)
        case More():
            yield from _more_line(block.count, "", paper)


def text_of(blocks: Iterable[Block]) -> str:
    """Return a report's text."""
    paper = Paper()
    return "\n".join(line for block in blocks for line in lines_of(block, paper))


def wrapped(line: str, width: int | None, indent: int | None = None) -> list[str]:
    """Wrap a line between words; further lines are indented, by default as the line is.

    Words that are longer than a line, such as paths, stay whole, so that they can be copied.
    """
    if indent is None:
        indent = len(line) - len(line.lstrip())
    if not width or cell_count(line) <= width or width - indent < _LEAST_WRAPPED:
        return [line]
    first = line[:indent]
    lines = wrap(
        line[indent:], width - indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return [f"{' ' * indent if number else first}{text}" for number, text in enumerate(lines)]


def _facts_lines(rows: Sequence[tuple[str, str]], paper: Paper) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield from wrapped(_shown(f"{name:<{width}}  {text}"), paper.width, width + _COLUMN_GAP)


def _table_lines(table: Table, paper: Paper) -> Iterator[str]:
    lines = [list(table.headers), *([_shown(str(cell)) for cell in row] for row in table.rows)]
    widths = {
        header: max(map(cell_count, column))
        for header, column in zip(table.headers, zip(*lines, strict=True), strict=True)
    }
    shown = _fitted(widths, table, paper.width) if paper.width else widths
    for line in lines:
        cells = (
            _aligned(shortened(cell, shown[header], paper.ellipsis), shown[header], header in table.right)
            for header, cell in zip(table.headers, line, strict=True)
            if header in shown
        )
        yield (" " * _COLUMN_GAP).join(cells).rstrip()
    if left_out := [header for header in table.optional if header in widths and header not in shown]:
        yield from wrapped(f"(no room for: {', '.join(left_out)}; {paper.whole} has all)", paper.width, 1)
    if table.remark:
        yield from wrapped(f"({table.remark}; {paper.whole} lists each)", paper.width, 1)
    yield from _more_line(table.more, table.more_what, paper)


def _more_line(count: int, what: str, paper: Paper) -> Iterator[str]:
    if count > 0:
        yield f"and {count} more{what}; {paper.whole} lists all"


def _fitted(widths: dict[str, int], table: Table, width: int) -> dict[str, int]:
    """Return the widths of the columns that fit."""
    droppable = [header for header in table.optional if header in widths]
    for count in range(len(droppable) + 1):
        kept = {header: each for header, each in widths.items() if header not in droppable[:count]}
        is_last = count == len(droppable)
        least = _LEAST_WIDTH if is_last else _READABLE_WIDTH
        room = width - _COLUMN_GAP * (len(kept) - 1)
        shrinkable = [header for header in kept if header not in table.right and (is_last or header not in table.keys)]
        while sum(kept.values()) > room and shrinkable:
            widest = max(shrinkable, key=kept.__getitem__)
            if kept[widest] <= max(least, len(widest)):
                shrinkable.remove(widest)
            else:
                kept[widest] -= 1
        if sum(kept.values()) <= room:
            return kept
    return kept


def _aligned(cell: str, width: int, to_right: bool) -> str:
    padding = " " * (width - cell_count(cell))
    return f"{padding}{cell}" if to_right else f"{cell}{padding}"


def _shown(text: str) -> str:
    return printable(scrubbed(text))
