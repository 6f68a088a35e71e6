"""A picture of a plan: the bytes that each target rank gets from each source rank, as numbers and as an SVG.

Ranks are binned if there are more than a reader can distinguish. Bytes are counted by layout class, not by read: 4096
to 3072 ranks take a second. Parameters that are not in any strategy are on every rank, and not in the picture.
"""

from collections.abc import Iterator

import numpy as np

from reshard.core.conversion.report import source_kind, target_kind
from reshard.core.plan.ownership import NO_RANK
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import RANK
from reshard.core.runtime.wording import ranks_text, size_text

MAX_BINS = 64
_LARGEST_GRID_PIXELS = 448
_LARGEST_CELL_PIXELS = 56
_LABELLED_CELLS = 8
"""Up to this number of ranks on both sides, each cell is large enough for a number."""
_MAX_TICKS, _TICK_PIXELS = 8, 14

_LEFT, _TOP, _LEGEND = 64, 64, 132
_LEVEL_FACTOR = 4
SHADES = ("#f3f4f6", "#dbeafe", "#93c5fd", "#3b82f6", "#1d4ed8", "#172554")
"""By level: nothing, then few bytes to many. Neighbors differ in lightness, so that the picture needs no colors."""
DARKEST = len(SHADES) - 1
"""The highest level."""
FIRST_DARK = 3
"""The first level on which text has to be light."""
_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#374151}"
    ".head{font-size:13px;font-weight:600;fill:#111827}.middle{text-anchor:middle}.end{text-anchor:end}"
    ".small{font-size:10px}.light{fill:#fff}"
)


class Feeds(Record):
    """Bytes that target ranks get from source ranks, in an array of (target bins, source bins).

    `ranks_per_bin` are those of each row and each column, the last may have fewer; `kinds` are of target and source.
    """

    counts_bytes: np.ndarray
    target_ranks: range
    source_ranks: range
    ranks_per_bin: tuple[int, int]
    kinds: tuple[str, str] = (RANK, RANK)

    def ranks_of_row(self, row: int) -> range:
        """Return the target ranks of a row."""
        return self.target_ranks[row * self.ranks_per_bin[0] : (row + 1) * self.ranks_per_bin[0]]

    def ranks_of_column(self, column: int) -> range:
        """Return the source ranks of a column."""
        return self.source_ranks[column * self.ranks_per_bin[1] : (column + 1) * self.ranks_per_bin[1]]


def ranks_of(plan: ConversionPlan) -> tuple[range, range]:
    """Return all ranks of the target, and of the source."""
    sources = [*plan.inputs.catalog.records, *plan.inputs.catalog.lost]
    return plan.target_ranks, range(min(sources), max(sources) + 1)


def feeds_of(plan: ConversionPlan, max_rows: int = MAX_BINS, max_columns: int = MAX_BINS) -> Feeds:
    """Count the bytes of each target rank's shards by source rank; copies count as if they were read."""
    targets, sources = ranks_of(plan)
    per_row, per_column = _ranks_per_bin(len(targets), max_rows), _ranks_per_bin(len(sources), max_columns)
    counts = np.zeros((-(-len(targets) // per_row), -(-len(sources) // per_column)), dtype=np.int64)
    for stage in plan.stages:
        first_row = stage.ranks.start - targets.start
        for layout_class in stage.classes:
            for cell, holders in layout_class.geometry.target.owners.items():
                rows = (first_row + np.array(holders)) // per_row
                bytes_per_unit = layout_class.bytes_per_unit[list(holders)]
                for part in layout_class.geometry.parts(cell):
                    if part.rank == NO_RANK:  # it has no elements
                        continue
                    column = (part.rank - sources.start) // per_column
                    np.add.at(counts[:, column], rows, part.box.size * bytes_per_unit)
    return Feeds(counts, targets, sources, (per_row, per_column), (target_kind(plan), source_kind(plan)))


def _ranks_per_bin(count: int, max_bins: int) -> int:
    """Return the ranks per bin: all bins are equal unless that would make them much fewer than allowed."""
    least = max(1, -(-count // max_bins))
    return next((size for size in range(least, least * 3 // 2 + 1) if count % size == 0), least)


def levels_of(counts: np.ndarray) -> np.ndarray:
    """Return the level of each count: the highest within a factor of 4 of the largest, each lower one a factor below.

    0 means nothing.
    """
    largest = counts.max(initial=1)
    steps = np.floor(np.log(largest / np.maximum(counts, 1)) / np.log(_LEVEL_FACTOR) + 1e-9).astype(int)
    return np.where(counts > 0, np.clip(DARKEST - steps, 1, DARKEST), 0)


def legend_of(feeds: Feeds) -> Iterator[tuple[int, str]]:
    """Return each level and its label, from many bytes to none."""
    largest = int(feeds.counts_bytes.max(initial=0))
    for level in range(DARKEST, 0, -1):
        yield level, f"up to {size_text(largest / _LEVEL_FACTOR ** (DARKEST - level))}"
    yield 0, "nothing"


def axis_title(title: str, ranks_per_bin: int) -> str:
    """Format an axis title: `Source rank, 16 to a cell`."""
    return title if ranks_per_bin == 1 else f"{title}, {ranks_per_bin} to a cell"


def feeds_title(feeds: Feeds) -> str:
    """Return the picture's title."""
    target, source = feeds.kinds
    return f"Which source {source}s feed which target {target}s"


def draw_feeds(feeds: Feeds, *, tooltips: bool = False) -> str:
    """Draw an SVG: a row for each target rank, a column for each source rank, the darker the more bytes.

    With `tooltips` the cell under the mouse shows its ranks and bytes; the picture is several times as large then.
    Shapes have classes, so a page can change their colors.
    """
    rows, columns = feeds.counts_bytes.shape
    side = min(_LARGEST_CELL_PIXELS, _LARGEST_GRID_PIXELS // max(rows, columns))
    width, height = _LEFT + columns * side + 24 + _LEGEND, max(_TOP + rows * side + 20, _TOP + 180)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="feeds-title feeds-text">',
        f'<title id="feeds-title">{feeds_title(feeds)}</title>',
        f'<desc id="feeds-text">{_description(feeds)}</desc>',
        f"<style>{_STYLE}</style>",
        # its own ground, because it is shown on light and on dark pages
        f'<rect class="ground" width="{width}" height="{height}" rx="8" fill="#fff"/>',
        *_cells(feeds, side),
        *(_tooltips(feeds, side) if tooltips else ()),
        *_axes(feeds, side),
        *_legend(feeds, _LEFT + columns * side + 24),
        "</svg>",
    ]
    return "".join(parts)


def _description(feeds: Feeds) -> str:
    target, source = feeds.kinds
    count, largest = np.count_nonzero(feeds.counts_bytes), size_text(int(feeds.counts_bytes.max()))
    return (
        f"A grid: {len(feeds.target_ranks)} target {target}s from top to bottom, {len(feeds.source_ranks)} source "
        f"{source}s from left to right. {count} of {feeds.counts_bytes.size} cells have bytes, the most {largest}."
    )


def _cells(feeds: Feeds, side: int) -> list[str]:
    """One path for each shade; equal neighbors in a row are one piece of it."""
    levels = levels_of(feeds.counts_bytes)
    gap = 2 if side > 20 else 1 if side > 8 else 0
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(levels.tolist()):
        begun = 0
        for column in range(1, len(line) + 1):
            if gap or column == len(line) or line[column] != line[begun]:
                x, y, length = _LEFT + begun * side, _TOP + row * side, (column - begun) * side - gap
                paths.setdefault(line[begun], []).append(f"M{x} {y}h{length}v{side - gap}h-{length}z")
                begun = column
    drawn = [
        f'<path class="level{level}" fill="{SHADES[level]}" d="{"".join(path)}"/>'
        for level, path in sorted(paths.items())
    ]
    return drawn + (_numbers(feeds, levels, side) if max(levels.shape) <= _LABELLED_CELLS else [])


def _numbers(feeds: Feeds, levels: np.ndarray, side: int) -> list[str]:
    numbers = []
    for row, column in np.argwhere(levels > 0).tolist():
        x, y = _LEFT + column * side + side // 2 - 1, _TOP + row * side + side // 2 + 3
        tone = " light" if levels[row, column] >= FIRST_DARK else ""
        said = size_text(int(feeds.counts_bytes[row, column]))
        numbers.append(f'<text class="middle small{tone}" x="{x}" y="{y}">{said}</text>')
    return numbers


def _tooltips(feeds: Feeds, side: int) -> list[str]:
    """Transparent cells with titles; the visible cells are joined to a few paths."""
    parts = ['<g fill="transparent">']
    for row, column in np.argwhere(feeds.counts_bytes > 0).tolist():
        x, y, size = _LEFT + column * side, _TOP + row * side, size_text(int(feeds.counts_bytes[row, column]))
        target = _ranks(feeds.ranks_of_row(row), feeds.kinds[0])
        source = _ranks(feeds.ranks_of_column(column), feeds.kinds[1])
        said = f"source {source} to target {target}: {size}"
        parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}"><title>{said}</title></rect>')
    return [*parts, "</g>"]


def _ranks(ranks: range, kind: str) -> str:
    return f"{kind}{'' if len(ranks) == 1 else 's'} {ranks_text(ranks)}"


def _axes(feeds: Feeds, side: int) -> list[str]:
    rows, columns = feeds.counts_bytes.shape
    per_row, per_column = feeds.ranks_per_bin
    target, source = feeds.kinds
    middle = _TOP + rows * side // 2
    upright = f'class="head middle" transform="translate(18 {middle}) rotate(-90)"'
    parts = [
        f'<text class="head" x="{_LEFT}" y="20">{axis_title(f"Source {source}", per_column)}</text>',
        f"<text {upright}>{axis_title(f'Target {target}', per_row)}</text>",
    ]
    for column in _ticks(columns, side):
        x = _LEFT + column * side + side // 2
        label = feeds.source_ranks[column * per_column]
        parts.append(f'<text class="middle" x="{x}" y="{_TOP - 8}">{label}</text>')
    for row in _ticks(rows, side):
        y = _TOP + row * side + side // 2 + 4
        label = feeds.target_ranks[row * per_row]
        parts.append(f'<text class="end" x="{_LEFT - 8}" y="{y}">{label}</text>')
    return parts


def _ticks(count: int, side: int) -> range:
    """The labelled cells along an edge; neighboring labels must not touch."""
    step = 1 if count <= 2 * _MAX_TICKS else -(-count // _MAX_TICKS)
    return range(0, count, max(step, -(-_TICK_PIXELS // side)))


def _legend(feeds: Feeds, x: int) -> list[str]:
    of_what = "of each cell" if max(feeds.ranks_per_bin) > 1 else f"from {feeds.kinds[1]} to {feeds.kinds[0]}"
    parts = [f'<text class="head" x="{x}" y="20">Bytes</text>', f'<text x="{x}" y="38">{of_what}</text>']
    for place, (level, said) in enumerate(legend_of(feeds)):
        y = _TOP + place * 24
        box = f'x="{x}" y="{y}" width="16" height="16" rx="3"'
        parts.append(f'<rect class="level{level}" {box} fill="{SHADES[level]}"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 12}">{said}</text>')
    return parts
