"""HTML of a report's blocks, for notebooks: tables without a style sheet, in the notebook's own colors.

Names are not trusted: every text is escaped.
"""

from collections.abc import Iterable, Iterator, Sequence

from reshard.core.reports.blocks import Block, Facts, Line, Listing, More, Table
from reshard.core.runtime.wording import html_text
from reshard.core.text.secrets import scrubbed

_WHOLE = "to_dict()"
# notebooks align cells to the right
_TEXT = "text-align: left; vertical-align: top"
_BROKEN = "; overflow-wrap: anywhere"
"""For long texts, which would push the table out of the window; short ones stay whole beside them."""
_LONG = 32
_NUMBER = "text-align: right; vertical-align: top; white-space: nowrap"


def html_of(blocks: Iterable[Block]) -> str:
    """Return an HTML fragment."""
    return f"<div>{''.join(part for block in blocks for part in _parts(block))}</div>"


def _parts(block: Block) -> Iterator[str]:
    match block:
        case Line():
            if block.text:
                yield _paragraph(block.text)
        case Facts():
            rows = [[_cell("th", name, _TEXT), _cell("td", text, _TEXT)] for name, text in block.rows]
            yield _rows(rows)
        case Table():
            yield from _table(block)
        case Listing():
            yield from _table(Table(block.headers, block.rows, more=block.more))
        case More():
            yield _paragraph(f"and {block.count} more; {_WHOLE} lists all")


def _table(table: Table) -> Iterator[str]:
    styles = [_NUMBER if header in table.right else _TEXT for header in table.headers]
    lines = [("th", table.headers), *(("td", row) for row in table.rows)]
    yield _rows(
        [_cell(tag, str(cell), style) for cell, style in zip(cells, styles, strict=True)] for tag, cells in lines
    )
    if table.remark:
        yield _paragraph(f"{table.remark}; {_WHOLE} lists each")
    if table.more > 0:
        yield _paragraph(f"and {table.more} more{table.more_what}; {_WHOLE} lists all")


def _rows(rows: Iterable[Sequence[str]]) -> str:
    lines = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<table style="margin-bottom: 1em">{lines}</table>'


def _cell(tag: str, text: str, style: str) -> str:
    broken = _BROKEN if len(text) > _LONG else ""
    return f'<{tag} style="{style}{broken}">{_escaped(text)}</{tag}>'


def _paragraph(text: str) -> str:
    return f"<p>{_escaped(text)}</p>"


def _escaped(text: str) -> str:
    return html_text(scrubbed(text))
