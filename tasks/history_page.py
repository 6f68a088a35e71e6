"""The page of all conversions of a server: totals by day and by week, and a row for each of the last conversions.

Texts of runs are not trusted: they are escaped as on the other pages (`pages`).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

from prefect import get_client
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort
from prefect.exceptions import ObjectNotFound

from reshard.core.conversion.history import (
    FAILURES,
    History,
    HistoryEntry,
    HistoryFilter,
    Totals,
    cost_text,
    totals_by_day,
    totals_by_week,
)
from reshard.core.runtime.wording import counted, seconds_text, shortened, size_text
from reshard.tasks.history import server_history
from reshard.tasks.pages import as_paragraph

HISTORY_KEY = "reshard-history"
MAX_COUNTED = 20_000
"""Conversions that a page counts: reading them takes a hundred requests."""
_MAX_DAYS, _MAX_WEEKS = 14, 13
_KEPT_VERSIONS = 10
"""Prefect keeps every version of an artifact, and a page is written every hour."""
_MAX_CHARACTERS = 100
_EXPLAINED = (
    "GB·h: the peak memory of a conversion's process, or its memory limit if the peak was not measured, multiplied by "
    "its running time. Prefect does not record who started or approved a run."
)


def publish_history(days: int, rows: int) -> Totals:
    """Read the conversions of so many days from the server of the current run, and publish their page."""
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        history = server_history(client, HistoryFilter(since=now - timedelta(days=days)), MAX_COUNTED)
        create_markdown_artifact(
            key=HISTORY_KEY,
            markdown=history_page(history, days, rows, now),
            description=f"{_head(history.totals, days)}, as of {now:%Y-%m-%d %H:%M} UTC",
        )
        _remove_old_versions(client)
    return history.totals


def history_page(history: History, days: int, rows: int, now: datetime) -> str:
    """Return the page of the conversions of so many days until `now`, with a row for each of the last ones."""
    entries = history.entries
    shown = entries[:rows]
    cut = f"More than {MAX_COUNTED:,} conversions: earlier ones are not counted." if history.is_cut else ""
    left_out = len(entries) - len(shown)
    rest = f"… and {left_out} earlier, which are counted above." if left_out else ""
    parts = [
        f"# {_head(history.totals, days)}",
        f"{_summary(history.totals)} As of {now:%Y-%m-%d %H:%M} UTC, and so are all times.",
        cut,
    ]
    if entries:
        parts += [
            "## By day",
            _totals_table("Day", totals_by_day(entries)[:_MAX_DAYS]),
            "## By week",
            _totals_table("Week from", totals_by_week(entries)[:_MAX_WEEKS]),
            "## Conversions",
            _entries_table(shown),
            rest,
            _EXPLAINED,
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(totals: Totals, days: int) -> str:
    return f"{counted(totals.conversions, 'conversion')} in {counted(days, 'day')}"


def _summary(totals: Totals) -> str:
    if not totals.conversions:
        return "No conversions."
    states = ", ".join(f"{count} {state}" for state, count in totals.states.items())
    return (
        f"**{states[:1].upper()}{states[1:]}.** {size_text(totals.written_bytes)} written in "
        f"{seconds_text(totals.seconds)}, at a cost of {cost_text(totals.cost_gb_hours)} GB·h."
    )


def _totals_table(title: str, periods: Iterable[Totals]) -> str:
    rows = [
        (
            _day_text(each.begin),
            str(each.conversions),
            str(each.failed or ""),
            size_text(each.read_bytes),
            size_text(each.written_bytes),
            seconds_text(each.seconds),
            cost_text(each.cost_gb_hours),
        )
        for each in periods
    ]
    return _table((title, "Conversions", "Failed", "Read", "Written", "Took", "GB·h"), rows)


def _day_text(day: date | None) -> str:
    return f"{day:%a %Y-%m-%d}" if day else ""


def _entries_table(entries: Sequence[HistoryEntry]) -> str:
    rows = [
        (
            _began(entry),
            _state(entry),
            _place(entry.target),
            _place(entry.source),
            _text("; ".join(filter(None, (entry.approval, entry.reason)))),
            _ranks(entry),
            _known(entry.written_bytes, size_text),
            _known(entry.seconds, seconds_text),
            entry.verified or "",
            _known(entry.cost_gb_hours, cost_text),
            _text(entry.started_by),
            _text(entry.fingerprint or ""),
        )
        for entry in entries
    ]
    places = ("Began", "State", "Target", "Source", "Approval, or reason", "Ranks", "Written", "Took", "Verified")
    return _table((*places, "GB·h", "Started by", "Fingerprint"), rows)


def _began(entry: HistoryEntry) -> str:
    """Return the time as a link to the run's page, which is on the server that shows this page."""
    return f"[{entry.when:%Y-%m-%d %H:%M}](/runs/flow-run/{entry.flow_run_id})"


def _state(entry: HistoryEntry) -> str:
    return f"**{entry.state}**" if entry.state in FAILURES else str(entry.state)


def _ranks(entry: HistoryEntry) -> str:
    if entry.source_world_size is None or entry.target_world_size is None:
        return ""
    return f"{entry.source_world_size} → {entry.target_world_size}"


def _place(url: str | None) -> str:
    """Format a place, of a long one its end: that is where it differs from others."""
    text = url or ""
    return as_paragraph(text if len(text) <= _MAX_CHARACTERS else f"…{text[-_MAX_CHARACTERS:]}")


def _text(text: str) -> str:
    return as_paragraph(shortened(text, _MAX_CHARACTERS))


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are markdown already."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *rows))


def _remove_old_versions(client: SyncPrefectClient) -> None:
    ours = ArtifactFilter(key=ArtifactFilterKey(any_=[HISTORY_KEY]))
    versions = client.read_artifacts(artifact_filter=ours, sort=ArtifactSort.CREATED_DESC, limit=200)
    for version in versions[_KEPT_VERSIONS:]:
        with suppress(ObjectNotFound):  # another run removes it as well
            client.delete_artifact(version.id)
