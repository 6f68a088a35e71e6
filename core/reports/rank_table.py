"""Tables with a row for each rank; of many ranks, equal rows become one.

Rows are equal if their texts are, but for columns that say how to sum several ranks up: `0-511` in place of a rank, the
pattern of files in place of one's name. The report itself has each rank.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from reshard.core.reports.blocks import Table
from reshard.core.reports.cells import shortened
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, ranks_text

MAX_ROWS = 32
"""More rows are grouped; a terminal's window shows about as many."""
_MAX_GROUPS = 24
_MAX_RANKS_WIDTH = 40

Row = TypeVar("Row")


class Column(Record, Generic[Row]):
    """A column of a table of ranks.

    Attributes:
        header: its name.
        text: the cell of one row.
        summed: the cell of several rows; None: rows of a group have the same text.
        right: True to align numbers.
        optional: order in which columns are left out on a narrow terminal; 0: never.
    """

    header: str
    text: Callable[[Row], object]
    summed: Callable[[Sequence[Row]], str] | None = None
    right: bool = False
    optional: int = 0


def rank_table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], *, noun: str = "rank", groups_in_files: bool = False
) -> Table:
    """Make a table of ranks: a row for each, and, of many, a short one with a row for each group of equal ones."""
    return Table(
        headers=[column.header for column in columns],
        rows=[[column.text(row) for column in columns] for row in rows],
        right=[column.header for column in columns if column.right],
        optional=[each.header for each in sorted(columns, key=lambda column: column.optional) if each.optional],
        short=_short(columns, rows, noun) if len(rows) > MAX_ROWS else None,
        is_short_in_files=groups_in_files,
    )


def _short(columns: Sequence[Column[Row]], rows: Sequence[Row], noun: str) -> Table:
    groups = _grouped(columns, rows)
    left_out = len(groups) - _MAX_GROUPS
    # the last ones, too: what is odd is often at an end
    shown = [*groups[: _MAX_GROUPS // 2], *groups[-_MAX_GROUPS // 2 :]] if left_out > 0 else groups
    more = f"; {left_out} groups in the middle are not shown" if left_out > 0 else ""
    return Table(
        headers=[columns[0].header, f"{noun}s", *(column.header for column in columns[1:])],
        rows=[
            [_cell(columns[0], group), len(group), *(_cell(column, group) for column in columns[1:])] for group in shown
        ],
        right=(f"{noun}s", *(column.header for column in columns[1:] if column.right)),
        optional=[each.header for each in sorted(columns, key=lambda column: column.optional) if each.optional],
        remark=f"{counted(len(rows), noun)} in {counted(len(groups), 'group')} of equal ones{more}",
    )


def rank_column(rank_of: Callable[[Row], int], header: str = "rank") -> Column[Row]:
    """The first column: the rank, or the number, of a row."""
    return Column(header, rank_of, lambda rows: _summed_ranks(map(rank_of, rows)), right=True)


def file_column(rank_of: Callable[[Row], int], file_of: Callable[[Row], str]) -> Column[Row]:
    """The file of a rank; of several, their pattern with `{rank}`, or the first and the last if they have none."""

    def summed(rows: Sequence[Row]) -> str:
        patterns = {_file_pattern(file_of(row), rank_of(row)) for row in rows}
        return patterns.pop() if len(patterns) == 1 else f"{file_of(rows[0])} … {file_of(rows[-1])}"

    return Column("file", file_of, summed, optional=1)


def ranks_column(header: str, ranks_of: Callable[[Row], Sequence[int]], *, right: bool = False) -> Column[Row]:
    """Other ranks that a row names; of several rows, all of theirs."""

    def summed(rows: Sequence[Row]) -> str:
        return _summed_ranks(rank for row in rows for rank in ranks_of(row))

    return Column(header, lambda row: ranks_text(ranks_of(row)), summed, right, optional=3)


def amount_column(header: str, amount_of: Callable[[Row], float], text: Callable[[float], str]) -> Column[Row]:
    """An amount; of several rows, the least and the most."""

    def summed(rows: Sequence[Row]) -> str:
        amounts = [amount_of(row) for row in rows]
        least, most = text(min(amounts)), text(max(amounts))
        return least if least == most else f"{least} to {most}"

    return Column(header, lambda row: text(amount_of(row)), summed, right=True, optional=2)


def _summed_ranks(ranks: Iterable[int]) -> str:
    return shortened(ranks_text(sorted(set(ranks))), _MAX_RANKS_WIDTH)


def _file_pattern(file: str, rank: int) -> str:
    return re.sub(rf"(?<=[_-]){rank}(?=[./])", "{rank}", file)


def _grouped(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[tuple[str | bool, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_group_key(column, str(column.text(row))) for column in columns), []).append(row)
    return list(groups.values())


def _group_key(column: Column[Row], text: str) -> str | bool:
    """Return what a cell has in common with those of its group: the text, or whether there is one."""
    return text if column.summed is None else bool(text)


def _cell(column: Column[Row], group: Sequence[Row]) -> object:
    return column.text(group[0]) if column.summed is None or len(group) == 1 else column.summed(group)
