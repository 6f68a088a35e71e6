"""The blocks of a report: its content as data, independent of how it is shown.

A report says once what it has to say. The command lays its blocks out for a terminal, `plain_text` does for `str()`,
and `html` for a notebook.
"""

from collections.abc import Sequence
from typing import Optional

from reshard.core.runtime.records import Record


class Facts(Record):
    """Names, each with its text, one below the other."""

    rows: Sequence[tuple[str, str]]


class Line(Record):
    """A sentence on a line of its own; an empty one sets off what follows."""

    text: str = ""


class Table(Record):
    """A table.

    Attributes:
        headers: names of the columns.
        rows: a cell for each column.
        right: right-aligned columns; their cells are never shortened.
        optional: columns to leave out where there is little room, the first one first.
        keys: columns that tell rows apart; optional ones are left out before these are shortened.
        remark: what the rows stand for, if not for one thing each.
        more: number of rows that it leaves out.
        more_what: what these rows are, if that has to be said.
        short: the same in few rows, if it has many.
        is_short_in_files: True if pipes and files get the short one, too.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()
    optional: Sequence[str] = ()
    keys: Sequence[str] = ()
    remark: str = ""
    more: int = 0
    more_what: str = ""
    short: Optional["Table"] = None
    is_short_in_files: bool = False


class Listing(Record):
    """Rows whose lines have the same form in every report, so that two can be compared line by line.

    Attributes:
        headers: names of the columns.
        rows: texts for each column.
        form: the line of a row, as `str.format` takes it.
        more: number of rows that it leaves out.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    form: str
    more: int = 0


class More(Record):
    """So many lines are left out."""

    count: int


Block = Facts | Line | Table | Listing | More
GAP = Line()
