"""A report's blocks with a limit to their size, whatever is in it: for `str()` and for notebooks."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from reshard.core.reports.blocks import Block, Facts, Line, Listing, More, Table
from reshard.core.reports.cells import shortened
from reshard.core.runtime.wording import shortened_in_middle

_MAX_ROWS = 48
"""Of a table, and of lines that follow each other."""
_MAX_CELL = 120
_MAX_TEXT = 600


def limited(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks with so many rows of such a length; what is left out is counted."""
    lines = 0
    for block in blocks:
        if isinstance(block, Line) and block.text:
            lines += 1
            if lines <= _MAX_ROWS:
                yield Line(_short(block.text, _MAX_TEXT))
            continue
        if lines > _MAX_ROWS:
            yield More(lines - _MAX_ROWS)
        lines = 0
        yield _limited(block)
    if lines > _MAX_ROWS:
        yield More(lines - _MAX_ROWS)


def _limited(block: Block) -> Block:
    match block:
        case Facts():
            facts = [(name, _short(text, _MAX_TEXT)) for name, text in block.rows[:_MAX_ROWS]]
            more = len(block.rows) - _MAX_ROWS
            return Facts([*facts, ("", f"and {more} more")] if more > 0 else facts)
        case Table():
            table = block.short or block
            left_out = max(0, len(table.rows) - _MAX_ROWS)
            return replace(table, rows=_short_cells(table.rows), more=max(0, table.more) + left_out)
        case Listing():
            return replace(block, rows=_short_cells(block.rows), more=len(block.rows) - _MAX_ROWS)
    return block


def _short_cells(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[_short(str(cell), _MAX_CELL) for cell in row] for row in rows[:_MAX_ROWS]]


def _short(text: str, length: int) -> str:
    # the best place for a cut is not looked for where characters have several widths: it would take long
    return shortened(text, length) if text.isascii() else shortened_in_middle(text, length)
