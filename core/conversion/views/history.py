"""What a history says: a row for each conversion, then sums over all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from reshard.core.conversion.history import History, HistoryEntry, cost_text
from reshard.core.reports.blocks import GAP, Block, Line, Table
from reshard.core.runtime.wording import counted, seconds_text, size_text
from reshard.core.text.options import option, spelled


def history_blocks(history: History) -> Iterator[Block]:
    """Yield the conversions, then what there is to say of all of them."""
    if not history.entries:
        yield Line("no conversions found")
        return
    yield _table(history.entries)
    yield from (GAP, Line(_totals_text(history)))
    if history.lineage is not None:
        yield GAP
        yield from history.lineage.blocks()
    if history.is_cut:
        yield Line(f"(earlier ones are not shown; {spelled(option('limit', 0))} shows all)")


def _table(entries: Sequence[HistoryEntry]) -> Table:
    """A table of the columns that are not empty."""
    columns = {header: [text(entry) for entry in entries] for header, text in _COLUMNS.items()}
    filled = {header: cells for header, cells in columns.items() if any(cells)}
    return Table(
        tuple(filled),
        list(zip(*filled.values(), strict=True)),
        right=("began", "written", "took", "GB·h"),
        optional=_LESS_NEEDED,
    )


def _began(entry: HistoryEntry) -> str:
    known = entry.begun or entry.queued or entry.ended
    return f"{known:%Y-%m-%d %H:%M}" if known else ""


def _ranks(entry: HistoryEntry) -> str:
    if entry.source_world_size is None or entry.target_world_size is None:
        return ""
    return f"{entry.source_world_size} -> {entry.target_world_size}"


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


_COLUMNS: Mapping[str, Callable[[HistoryEntry], str]] = {
    "began": _began,
    "state": lambda entry: entry.state,
    "target": lambda entry: entry.target or "",
    "source": lambda entry: entry.source or "",
    "ranks": _ranks,
    "written": lambda entry: _known(entry.written_bytes, size_text),
    "took": lambda entry: _known(entry.seconds, seconds_text),
    "verified": lambda entry: entry.verified or "",
    "GB·h": lambda entry: _known(entry.cost_gb_hours, cost_text),
    # manifests do not say it
    "by": lambda entry: entry.started_by if entry.flow_run_id else "",
    "approval": lambda entry: entry.approval or "",
    "ran as": lambda entry: entry.ran_as or "",
    "why": lambda entry: entry.reason,
    "run": lambda entry: entry.flow_run_id or "",
    "fingerprint": lambda entry: entry.fingerprint or "",
}
_LESS_NEEDED = (
    *("fingerprint", "run", "ran as", "source", "by", "GB·h"),
    *("verified", "approval", "ranks", "written", "why", "took"),
)
"""Columns that are left out where there is little room, the first one first."""


def _totals_text(history: History) -> str:
    totals = history.totals
    states = ", ".join(f"{count} {state}" for state, count in totals.states.items())
    return (
        f"{counted(totals.conversions, 'conversion')}: {states}; {size_text(totals.written_bytes)} written in "
        f"{seconds_text(totals.seconds)}, {cost_text(totals.cost_gb_hours)} GB·h"
    )
