"""Shows results: tables in the terminal, tables and plot in README.md here, a row in the project's."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import results
from benchmarks.results import Result
from benchmarks.scenarios import Scenario
from benchmarks.tables import Table, contenders_table, is_shape, shapes_table, summary_table, targets_table

_HERE = Path(__file__).parent
README = _HERE / "README.md"
PROJECT_README = _HERE.parent / "README.md"
PLOT = _HERE / "results.svg"
_FILE_WIDTH = 150
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"


def show(result: Result) -> None:
    """Prints what came out of one scenario."""
    _print(contenders_table(result))
    for contender, problem in result.wrong.items():
        print(f"{contender} wrote wrong values: {problem}")


def publish(scenarios: Sequence[Scenario]) -> None:
    """Prints how the limits are kept; writes README and plot if there are results of all scenarios."""
    found = {result.scenario: result for result in results.load([scenario.name for scenario in scenarios])}
    _print(targets_table(list(found.values())))
    missing = [scenario.name for scenario in scenarios if scenario.name not in found]
    if missing:
        print(f"README and plot are as they were: there are no results yet of {', '.join(missing)}")
        return
    main, shapes = found["main"], [found[scenario.name] for scenario in scenarios if is_shape(scenario)]
    others = [found[scenario.name] for scenario in scenarios if scenario.name != "main" and not is_shape(scenario)]
    tables = [targets_table(list(found.values())), contenders_table(main), shapes_table(shapes)]
    tables += [contenders_table(result) for result in others]
    plot = "![The figures below as bars](results.svg)"
    text = "\n\n".join([_where(list(found.values())), plot, *map(markdown, tables), *_wrong(main)])
    for readme, figures in ((README, text), (PROJECT_README, "\n".join(_lines(summary_table(main))))):
        readme.write_text(with_figures(readme.read_text(), figures))
    from benchmarks.plot import draw  # matplotlib takes memory, and this process is to be small while it measures

    draw(main, shapes, PLOT)
    print(f"{PROJECT_README}, {README} and {PLOT} are up to date")


def with_figures(document: str, figures: str) -> str:
    """The document with other figures between its two marks."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the document lacks {_BEGIN} or {_END}")
    return f"{before}{_BEGIN}\n\n{figures}\n\n{_END}{after}"


def markdown(table: Table) -> str:
    """A table in Markdown, under its title and its note."""
    return "\n".join([f"### {table.title}", "", *([table.note, ""] if table.note else []), *_lines(table)])


def _lines(table: Table) -> list[str]:
    return [_row(table.headers), _row(["---", *["---:"] * (len(table.headers) - 1)]), *map(_row, table.rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _print(table: Table) -> None:
    note = _plain(table.note) or None
    shown = RichTable(title=_plain(table.title), title_justify="left", caption=note, caption_justify="left")
    for number, header in enumerate(table.headers):
        shown.add_column(_plain(header), justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*map(_plain, row))
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(shown)


def _plain(text: str) -> str:
    return text.replace("`", "").replace("**", "")


def _where(found: Sequence[Result]) -> str:
    days = sorted({result.measured_on for result in found})
    machine = found[-1].machine
    return (
        f"Measured on {days[-1]}"
        + (f" (the oldest figure: {days[0]})" if len(days) > 1 else "")
        + f", in memory-backed storage: {machine.processor}, {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.0f} GiB, {machine.system}, Python {machine.python}. "
        "Medians; in brackets the least and the most of all rounds."
    )


def _wrong(main: Result) -> list[str]:
    return [f"**{contender} wrote wrong values**: the first is {problem}" for contender, problem in main.wrong.items()]
