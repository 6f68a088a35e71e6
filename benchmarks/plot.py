"""The plot in the README: seconds of the main comparison, and of all shapes how many times as long as `cp -r`."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.style import context

from benchmarks.contenders import CHECKSUM, CONTENDERS, CP, NONE
from benchmarks.results import Result, ratio, seconds
from benchmarks.tables import CHECKSUM_TIMES_CP, NONE_TIMES_CP, contenders_of, times_text

_COLORS = {CP.name: "#8c8c8c", NONE.name: "#4c78a8", CHECKSUM.name: "#54a24b", "flow": "#b279a2"}
_OTHERS_COLOR = "#f58518"
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "reshard",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(main: Result, shapes: Sequence[Result], path: Path) -> None:
    """Writes the plot. Its background is white, so that it can be read on dark pages as well."""
    with context(_STYLE):
        figure = Figure(figsize=(9, 6.4), facecolor="white", layout="constrained")
        canvas = FigureCanvasSVG(figure)
        upper, lower = figure.subplots(2, 1, height_ratios=[1, 1.45])
        _draw_main(upper, main)
        _draw_shapes(lower, [main, *shapes])
        canvas.print_svg(path, metadata={"Date": None})


def _draw_main(axes: Axes, main: Result) -> None:
    names = contenders_of(main)[::-1]
    for place, name in enumerate(names):
        spread = seconds(main, name)
        axes.barh(place, spread.median, 0.65, color=_COLORS.get(name, _OTHERS_COLOR))
        axes.plot([spread.low, spread.high], [place, place], color="#222222", linewidth=1)
        wrong = ", wrong values" if name in main.wrong else ""
        axes.annotate(
            f"{spread.median:.1f} s{wrong}", (spread.high, place), (5, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(names)), [CONTENDERS[name].title.replace("`", "") for name in names])
    _scale(axes, max(run.seconds for run in main.runs))
    axes.set_xlabel("seconds (logarithmic), median and range")
    axes.set_title("A llama with Adam moments, 1.9 GiB, from 8 ranks to 4", loc="left", fontweight="bold")


def _draw_shapes(axes: Axes, results: Sequence[Result]) -> None:
    highest = 0.0
    for place, result in enumerate(reversed(results)):
        for shift, contender in ((0.2, NONE), (-0.2, CHECKSUM)):
            spread = ratio(result, contender.name, CP.name)
            axes.barh(place + shift, spread.median, 0.38, color=_COLORS[contender.name])
            axes.plot([spread.low, spread.high], [place + shift] * 2, color="#222222", linewidth=1)
            axes.annotate(
                times_text(spread.median), (spread.high, place + shift), (4, 0), textcoords="offset points", va="center"
            )
            highest = max(highest, spread.high)
    for limit, contender in ((NONE_TIMES_CP, NONE), (CHECKSUM_TIMES_CP, CHECKSUM)):
        axes.axvline(limit, color=_COLORS[contender.name], linestyle=":", linewidth=1.2)
    axes.axvline(1, color=_COLORS[CP.name], linewidth=1)
    axes.set_yticks(range(len(results)), [result.scenario for result in reversed(results)])
    _scale(axes, highest)
    axes.set_xlabel("times as long as cp -r of the same bytes; dotted: the limits for the first")
    axes.set_title("not verified (blue) and every byte verified (green)", loc="left", fontweight="bold")


def _scale(axes: Axes, highest: float) -> None:
    """A logarithmic axis with plain numbers, and room for a label to the right."""
    axes.set_xscale("log")
    axes.set_xlim(0.5, highest * 1.5)
    ticks = [tick for tick in (0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if tick < highest * 1.5]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
