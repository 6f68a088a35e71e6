"""The picture of a plan on a terminal: a row for each target rank, a column for each source rank, shaded by bytes.

Cells set their own background, since the terminal's may be light or dark. Without enough colors, characters of
increasing density replace the shades. Ranks are binned to fit.
"""

from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.text import Text

from reshard.core.conversion.views.picture import FIRST_DARK, SHADES, Feeds, feeds_of, legend_of, levels_of, ranks_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record

_MAX_LINES = 32
_MAX_LABELS = 8
_MAX_NUMBERED = 16
_NUMBER_WIDTH = 6
"""Characters in a cell with a number such as `1023M`."""
_SQUARE_WIDTH = 2
"""A character is about twice as high as it is wide."""
_DENSITIES = " ·░▒▓█"
_ASCII_DENSITIES = " .:+#@"
_HALF = "▀"
_DARK, _LIGHT = "#111827", "#ffffff"
_UNITS = "KMGTP"


class _Drawing(Record):
    """The style of cells.

    Attributes:
        cell_width: characters in a cell.
        rows_per_line: rows of cells in a line of the terminal.
        numbered: each cell shows its bytes.
        densities: a character for each level; empty: colors are used.
    """

    cell_width: int
    rows_per_line: int
    numbered: bool
    densities: str


def print_feeds(plan: ConversionPlan, console: Console | None = None) -> None:
    """Draw which source ranks feed which target ranks, as large as the terminal allows; nothing without resharding."""
    console = console or Console()
    targets, sources = ranks_of(plan)
    label_width = len(str(targets[-1]))
    room = max(_NUMBER_WIDTH, console.width - label_width - 3)
    drawing = _drawing(console, len(targets), len(sources), room)
    feeds = feeds_of(plan, _MAX_LINES * drawing.rows_per_line, room // drawing.cell_width)
    if not feeds.counts_bytes.any():
        return
    console.print(_heading(feeds))
    for line in (_ticks(feeds, drawing, label_width), *_rows(feeds, drawing, label_width)):
        console.print(line, soft_wrap=True)
    if not drawing.numbered:
        console.print()
        for line in _legend(feeds, drawing, console.width):
            console.print(line, soft_wrap=True)
    if plan.match.passed_through:
        console.print("Parameters that no strategy knows are on every rank, and not in the picture.", highlight=False)


def _drawing(console: Console, rows: int, columns: int, room: int) -> _Drawing:
    colored = not console.no_color and console.color_system in ("truecolor", "256")
    encodable = _can_show(_DENSITIES + _HALF, console.encoding)
    densities = "" if colored else _DENSITIES if encodable else _ASCII_DENSITIES
    if columns * _NUMBER_WIDTH <= room and rows <= _MAX_NUMBERED:
        return _Drawing(_NUMBER_WIDTH, 1, True, densities)
    if not (colored and encodable) or (columns * _SQUARE_WIDTH <= room and rows <= _MAX_LINES):
        return _Drawing(_SQUARE_WIDTH, 1, False, densities)
    return _Drawing(1, 2, False, "")


def _can_show(characters: str, encoding: str) -> bool:
    try:
        characters.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _heading(feeds: Feeds) -> Text:
    per_row, per_column = feeds.ranks_per_bin
    target, source = feeds.kinds
    heading = Text(f"Bytes from source {source} (across) to target {target} (down)")
    if max(per_row, per_column) > 1:
        heading.append(f", {per_column} x {per_row} to a cell")
    return heading


def _ticks(feeds: Feeds, drawing: _Drawing, label_width: int) -> Text:
    columns = feeds.counts_bytes.shape[1]
    widest = len(str(feeds.source_ranks[-1]))
    step = 1
    while step * drawing.cell_width < widest + 1:
        step *= 2
    line = " " * (label_width + 2)
    for column in range(0, columns, step):
        label = str(feeds.ranks_of_column(column)[0])
        if drawing.numbered:
            line += label.rjust(drawing.cell_width)
        elif len(label) <= (columns - column) * drawing.cell_width:
            line += label.ljust(step * drawing.cell_width)
    return Text(line.rstrip())


def _rows(feeds: Feeds, drawing: _Drawing, label_width: int) -> Iterator[Text]:
    levels = levels_of(feeds.counts_bytes)
    lines = range(0, len(levels), drawing.rows_per_line)
    step = 1
    while not drawing.numbered and len(lines) > _MAX_LABELS * step:
        step *= 2
    for number, row in enumerate(lines):
        label = str(feeds.ranks_of_row(row)[0]) if number % step == 0 else ""
        frame = "|" if drawing.densities else " "
        line = Text(f"{label:>{label_width}} {frame}")
        if drawing.rows_per_line == 2:
            _append_halves(line, levels[row : row + 2])
        else:
            _append_cells(line, levels[row], feeds.counts_bytes[row], drawing)
        yield line.append(frame.rstrip())


def _append_halves(line: Text, levels: np.ndarray) -> None:
    """Append two rows of cells, as upper and lower halves of characters; the last line may have one row."""
    for column in levels.T.tolist():
        upper, *lower = (SHADES[level] for level in column)
        line.append(_HALF, Style(color=upper, bgcolor=lower[0] if lower else None))


def _append_cells(line: Text, levels: np.ndarray, counts_bytes: np.ndarray, drawing: _Drawing) -> None:
    for level, count_bytes in zip(levels.tolist(), counts_bytes.tolist(), strict=True):
        number = _short_size(count_bytes) if drawing.numbered and count_bytes else ""
        if drawing.densities:
            line.append(number.rjust(drawing.cell_width) if drawing.numbered else drawing.densities[level] * 2)
        else:
            color = _LIGHT if level >= FIRST_DARK else _DARK
            line.append(number.rjust(drawing.cell_width - 1), Style(color=color, bgcolor=SHADES[level]))
            line.append(" ", Style(bgcolor=SHADES[level]))


def _legend(feeds: Feeds, drawing: _Drawing, width: int) -> Iterator[Text]:
    line = Text()
    for level, label in legend_of(feeds):
        if drawing.densities:
            item = Text(f"[{drawing.densities[level] * 2}]")
        else:
            item = Text.styled("  ", Style(bgcolor=SHADES[level]))
        item.append(f" {label}  ")
        if line and len(line) + len(item) > width:
            yield line
            line = Text()
        line.append(item)
    yield line


def _short_size(count_bytes: int) -> str:
    """Format bytes in at most five characters: `512`, `1.5K`, `167K`, `1023M`."""
    number = float(count_bytes)
    for unit in ("", *_UNITS):
        if number < 1023.5 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{number:.1f}{unit}" if unit and number < 9.95 else f"{number:.0f}{unit}"
