"""A picture of one parameter: the source's shards, and for each part of the target's shards its source rank.

A tensor is drawn along the one or two axes that are sharded; further sharded axes are shown at their beginning. Each
part has the color of the source rank that it is read from, in the source and in the target.
"""

from collections.abc import Iterator, Sequence

from reshard.core.plan.overlaps import ParameterOverlaps, SourceCell, TargetCell
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import html_text, listed_ranks, size_text
from reshard.core.tensor.slices import Shape, TensorSlice

_LONGEST_PIXELS = 400
_SHORTEST_PIXELS, _BAR_PIXELS = 160, 64
"""Minimum of a tensor's shorter axis, and height of a tensor with one axis."""
_LEFT, _TOP, _BETWEEN = 24, 64, 72
_SMALLEST_LABELLED = (26, 14)
_MAX_LISTED = 40
_HUE_STEP = 137.508
"""Degrees between the colors of neighboring ranks: the golden angle keeps nearby ranks apart."""
_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#374151}"
    ".head{font-size:13px;font-weight:600;fill:#111827}"
    ".inside{font-size:11px;text-anchor:middle;fill:#111827;pointer-events:none}"
    ".inside{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}"
    ".cell{fill:none;stroke:#111827;pointer-events:none}.part{stroke:#fff;stroke-width:.5}"
)


class _View(Record):
    """Layout of a tensor on the page: what goes downwards, then what goes to the right.

    `axes` are None where no axis is drawn; `hidden` are sharded axes that are shown at their beginning only.
    """

    axes: tuple[int | None, int | None]
    scales_pixels: tuple[float, float]
    size_pixels: tuple[float, float]
    hidden: Shape

    def shows(self, box: TensorSlice) -> bool:
        """True if any part of a box is visible."""
        return box.size > 0 and all(box.start[axis] == 0 for axis in self.hidden)

    def place(self, box: TensorSlice) -> tuple[float, float, float, float]:
        """Return left, top, width and height of a box."""
        (top, height), (left, width) = (
            (0.0, pixels) if axis is None else (box.start[axis] * scale, (box.stop[axis] - box.start[axis]) * scale)
            for axis, scale, pixels in zip(self.axes, self.scales_pixels, self.size_pixels, strict=True)
        )
        return left, top, width, height


def draw_overlaps(overlaps: ParameterOverlaps) -> str:
    """Draw an SVG: the sources one below the other on the left, the target stage by stage on the right."""
    parameter = overlaps.parameter
    left: list[str] = []
    right: list[str] = []
    bottom, widest = float(_TOP), 0.0
    for number, source in enumerate(parameter.sources):
        cells = [cell for cell in overlaps.source_cells if cell.source == number]
        # several sources are drawn smaller, to fit beside their target
        longest = max(_LONGEST_PIXELS / len(parameter.sources), _SHORTEST_PIXELS)
        view = _view(source.shape, [cell.box for cell in cells], longest)
        left += _titles("Source", f"{source.name}, {source.dtype} {list(source.shape)}", view, _LEFT, bottom)
        left += _group(_source_parts(cells, view), _LEFT, bottom)
        bottom, widest = bottom + view.size_pixels[0] + _BETWEEN, max(widest, view.size_pixels[1])
    x = _LEFT + max(widest, 300) + _BETWEEN
    down, width = float(_TOP), x
    for stage, target_cells in overlaps.target_cells.items():
        # the parts of a cell may be sharded along other axes than the cells
        view = _view(parameter.shape, [overlap.target_box for cell in target_cells for overlap in cell.overlaps])
        where = f" in {overlaps.place(stage)}" if len(overlaps.target_cells) > 1 or overlaps.match.files.names else ""
        what = f"{parameter.name}, {parameter.dtype} {list(parameter.shape)}"
        right += _titles(f"Target{where}", what, view, x, down)
        right += _group(_target_parts(overlaps, target_cells, view), x, down)
        down = down + view.size_pixels[0] + _BETWEEN
        width = max(width, x + max(view.size_pixels[1], 300) + _LEFT)
    height = max(bottom, down)
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="cells-title cells-text">',
            f'<title id="cells-title">Where the parts of {html_text(parameter.name)} come from</title>',
            f'<desc id="cells-text">{_description(overlaps)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="8" fill="#fff"/>',
            *left,
            *right,
            "</svg>",
        ]
    )


def _view(shape: Shape, boxes: Sequence[TensorSlice], longest_pixels: float = _LONGEST_PIXELS) -> _View:
    cuts = [len({box.start[axis] for box in boxes}) for axis in range(len(shape))]
    by_cuts = sorted(range(len(shape)), key=lambda axis: (-cuts[axis], axis))
    shown = sorted(by_cuts[:2])
    hidden = tuple(axis for axis in range(len(shape)) if axis not in shown and cuts[axis] > 1)
    axes = (shown[0], shown[1]) if len(shown) == 2 else (None, shown[0]) if shown else (None, None)
    lengths = [1 if axis is None else max(shape[axis], 1) for axis in axes]
    longest = max(lengths)
    pixels = [
        _BAR_PIXELS if axis is None else max(longest_pixels * length / longest, _SHORTEST_PIXELS)
        for axis, length in zip(axes, lengths, strict=True)
    ]
    return _View(axes, (pixels[0] / lengths[0], pixels[1] / lengths[1]), (pixels[0], pixels[1]), hidden)


def _titles(title: str, what: str, view: _View, x: float, y: float) -> list[str]:
    down, across = view.axes
    said = [f"axis {axis} {way}" for axis, way in ((down, "down"), (across, "across")) if axis is not None]
    said += [f"at the beginning of axis {axis}, cut as well" for axis in view.hidden]
    short = what if len(what) <= 48 else f"{what[:18]}…{what[-29:]}"
    return [
        f'<text class="head" x="{x:.0f}" y="{y - 42:.0f}">{html_text(title)}</text>',
        f'<text x="{x:.0f}" y="{y - 25:.0f}">{html_text(short)}</text>',
        f'<text x="{x:.0f}" y="{y - 8:.0f}">{", ".join(said) or "one element"}</text>',
    ]


def _group(shapes: Iterator[str], x: float, y: float) -> list[str]:
    return [f'<g transform="translate({x:.0f} {y:.0f})">', *shapes, "</g>"]


def _source_parts(cells: Sequence[SourceCell], view: _View) -> Iterator[str]:
    for cell in filter(lambda cell: view.shows(cell.box), cells):
        owners = f"source ranks {listed_ranks(cell.ranks, _MAX_LISTED)}" if cell.ranks else "no usable file"
        yield _part(view, cell.box, cell.ranks[0] if cell.ranks else None, f"{cell.box} on {owners}")
        yield _label(view, cell.box, listed_ranks(cell.ranks, _MAX_LISTED))


def _target_parts(overlaps: ParameterOverlaps, cells: Sequence[TargetCell], view: _View) -> Iterator[str]:
    for cell in cells:
        kept_by = f"target ranks {listed_ranks(cell.ranks, _MAX_LISTED)}"
        for overlap in filter(lambda overlap: view.shows(overlap.target_box), cell.overlaps):
            source = overlaps.parameter.sources[overlap.source].name
            size = size_text(overlaps.size_bytes(overlap))
            said = f"{kept_by}: {overlap.target_box}, {size}, from source rank {overlap.source_rank}'s {source} "
            yield _part(view, overlap.target_box, overlap.source_rank, f"{said}{overlap.source_box}")
    for cell in filter(lambda cell: view.shows(cell.box), cells):
        x, y, width, height = view.place(cell.box)
        line = min(2, width / 6, height / 6)
        yield (
            f'<rect class="cell" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'stroke-width="{line:.2f}"/>'
        )
        yield _label(view, cell.box, listed_ranks(cell.ranks, _MAX_LISTED))


def _part(view: _View, box: TensorSlice, rank: int | None, said: str) -> str:
    x, y, width, height = view.place(box)
    color = "#fff" if rank is None else f"hsl({rank * _HUE_STEP % 360:.0f} 60% {70 + rank % 3 * 7}%)"
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    # every other row: what is between shows through
    sparse = ' fill-opacity=".5"' if box.steps else ""
    return f'<rect class="part" {place} fill="{color}"{sparse}><title>{html_text(said)}</title></rect>'


def _label(view: _View, box: TensorSlice, said: str) -> str:
    """The ranks in the middle of a cell, if there is room for them."""
    x, y, width, height = view.place(box)
    if height < _SMALLEST_LABELLED[1] or width < max(_SMALLEST_LABELLED[0], 6 * len(said)):
        return ""
    return f'<text class="inside" x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}">{said}</text>'


def _description(overlaps: ParameterOverlaps) -> str:
    targets = sum(map(len, overlaps.target_cells.values()))
    parts = sum(len(cell.overlaps) for cells in overlaps.target_cells.values() for cell in cells)
    return f"{len(overlaps.source_cells)} shards of the source make {targets} shards of the target, in {parts} parts."
