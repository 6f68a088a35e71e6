"""A picture of a plan: how many bytes each target rank gets from each source rank, as an SVG.

Ranks are binned where there are more than can be told apart. The plan's layout classes are gone through, not its reads:
4096 to 3072 ranks take a second. Parameters that no strategy knows are on every rank, and not in the picture.
"""

from dataclasses import dataclass

import numpy as np

from core.plan import ConversionPlan
from core.wording import size_text

_MOST_BINS = 64
_LARGEST_GRID_PIXELS = 448
_LARGEST_CELL_PIXELS = 56
_LABELLED_CELLS = 8
"""Up to so many ranks on both sides, each cell is large enough for a number."""
_MOST_TICKS = 8

_LEFT, _TOP, _LEGEND = 64, 64, 132
_LEVEL_FACTOR = 4
_SHADES = ("#dbeafe", "#93c5fd", "#3b82f6", "#1d4ed8", "#172554")
"""From few bytes to many; neighbors differ in lightness, so that the picture can be read without colors."""
_EMPTY = "#f3f4f6"
_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#374151}"
    ".head{font-size:13px;font-weight:600;fill:#111827}.middle{text-anchor:middle}.end{text-anchor:end}"
    ".small{font-size:10px}.light{fill:#fff}"
)


@dataclass(frozen=True)
class Feeds:
    """What target ranks get from source ranks.

    Attributes:
        counts_bytes: int64 array of shape (target bins, source bins).
        target_ranks: all ranks of the target.
        source_ranks: all ranks of the source.
        ranks_per_bin: how many ranks each row and each column stands for; the last may have fewer.
    """

    counts_bytes: np.ndarray
    target_ranks: range
    source_ranks: range
    ranks_per_bin: tuple[int, int]


def feeds_of(plan: ConversionPlan, most_bins: int = _MOST_BINS) -> Feeds:
    """How many bytes the shards that each target rank keeps have from each source rank; copies as if they were read."""
    held, lost = plan.inputs.catalog.records, plan.inputs.catalog.lost
    targets, sources = plan.target_ranks, range(min([*held, *lost]), max([*held, *lost]) + 1)
    per_row, per_column = -(-len(targets) // most_bins), -(-len(sources) // most_bins)
    counts = np.zeros((-(-len(targets) // per_row), -(-len(sources) // per_column)), dtype=np.int64)
    for stage in plan.stages:
        first_row = stage.ranks.start - targets.start
        for layout_class in stage.classes:
            for cell, holders in layout_class.pair.target.holders.items():
                rows = (first_row + np.array(holders)) // per_row
                bytes_per_unit = layout_class.bytes_per_unit[list(holders)]
                for part in layout_class.pair.parts(cell):
                    column = (part.rank - sources.start) // per_column
                    np.add.at(counts[:, column], rows, part.box.size * bytes_per_unit)
    return Feeds(counts, targets, sources, (per_row, per_column))


def draw_feeds(feeds: Feeds) -> str:
    """The picture: a row for each target rank, a column for each source rank, the darker the more bytes."""
    rows, columns = feeds.counts_bytes.shape
    side = min(_LARGEST_CELL_PIXELS, _LARGEST_GRID_PIXELS // max(rows, columns))
    width, height = _LEFT + columns * side + 24 + _LEGEND, max(_TOP + rows * side + 20, _TOP + 180)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        # a ground of its own: it is shown on light and on dark pages
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
        *_cells(feeds, side),
        *_axes(feeds, side),
        *_legend(feeds, _LEFT + columns * side + 24),
        "</svg>",
    ]
    return "".join(parts)


def _levels(counts: np.ndarray) -> np.ndarray:
    """The shade of each count: the darkest within a factor of the largest, each lighter one a factor below; 0: none."""
    largest = counts.max(initial=1)
    steps = np.floor(np.log(largest / np.maximum(counts, 1)) / np.log(_LEVEL_FACTOR) + 1e-9).astype(int)
    return np.where(counts > 0, np.clip(len(_SHADES) - steps, 1, len(_SHADES)), 0)


def _cells(feeds: Feeds, side: int) -> list[str]:
    """One path for each shade; cells of a row that are alike and side by side are one piece of it."""
    levels = _levels(feeds.counts_bytes)
    gap = 2 if side > 20 else 1 if side > 8 else 0
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(levels.tolist()):
        begun = 0
        for column in range(1, len(line) + 1):
            if gap or column == len(line) or line[column] != line[begun]:
                x, y, length = _LEFT + begun * side, _TOP + row * side, (column - begun) * side - gap
                paths.setdefault(line[begun], []).append(f"M{x} {y}h{length}v{side - gap}h-{length}z")
                begun = column
    drawn = [f'<path fill="{_shade(level)}" d="{"".join(path)}"/>' for level, path in sorted(paths.items())]
    return drawn + (_numbers(feeds, levels, side) if max(levels.shape) <= _LABELLED_CELLS else [])


def _numbers(feeds: Feeds, levels: np.ndarray, side: int) -> list[str]:
    numbers = []
    for row, column in np.argwhere(levels > 0).tolist():
        x, y = _LEFT + column * side + side // 2 - 1, _TOP + row * side + side // 2 + 3
        tone = " light" if levels[row, column] > 2 else ""
        said = size_text(int(feeds.counts_bytes[row, column]))
        numbers.append(f'<text class="middle small{tone}" x="{x}" y="{y}">{said}</text>')
    return numbers


def _axes(feeds: Feeds, side: int) -> list[str]:
    rows, columns = feeds.counts_bytes.shape
    per_row, per_column = feeds.ranks_per_bin
    middle = _TOP + rows * side // 2
    upright = f'class="head middle" transform="translate(18 {middle}) rotate(-90)"'
    parts = [
        f'<text class="head" x="{_LEFT}" y="20">{_axis_title("Source rank", per_column)}</text>',
        f"<text {upright}>{_axis_title('Target rank', per_row)}</text>",
    ]
    for column in _ticks(columns):
        x = _LEFT + column * side + side // 2
        label = feeds.source_ranks[column * per_column]
        parts.append(f'<text class="middle" x="{x}" y="{_TOP - 8}">{label}</text>')
    for row in _ticks(rows):
        y = _TOP + row * side + side // 2 + 4
        label = feeds.target_ranks[row * per_row]
        parts.append(f'<text class="end" x="{_LEFT - 8}" y="{y}">{label}</text>')
    return parts


def _axis_title(title: str, per_bin: int) -> str:
    return title if per_bin == 1 else f"{title}, {per_bin} to a cell"


def _ticks(count: int) -> range:
    return range(0, count, 1 if count <= 2 * _MOST_TICKS else -(-count // _MOST_TICKS))


def _legend(feeds: Feeds, x: int) -> list[str]:
    largest = int(feeds.counts_bytes.max(initial=0))
    parts = [f'<text class="head" x="{x}" y="20">Bytes</text>', f'<text x="{x}" y="38">{_of_what(feeds)}</text>']
    for place, level in enumerate(range(len(_SHADES), -1, -1)):
        y = _TOP + place * 24
        steps = len(_SHADES) - level
        if level == len(_SHADES):
            said = f"up to {size_text(largest)}"
        elif level:
            said = f"up to {size_text(largest / _LEVEL_FACTOR**steps)}"
        else:
            said = "nothing"
        parts.append(f'<rect x="{x}" y="{y}" width="16" height="16" rx="3" fill="{_shade(level)}"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 12}">{said}</text>')
    return parts


def _of_what(feeds: Feeds) -> str:
    return "of each cell" if max(feeds.ranks_per_bin) > 1 else "from rank to rank"


def _shade(level: int) -> str:
    return _SHADES[level - 1] if level else _EMPTY
