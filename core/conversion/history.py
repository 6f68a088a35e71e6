"""What is known of conversions, one entry for each: when, who, from where to where, how much, how long, at what cost.

Entries come from the manifests of a directory of targets (`target_history`), or from a Prefect server
(`reshard.tasks.history`). What neither of them recorded is None, and never guessed.

The cost of a conversion is the memory that its process held, times the time that it ran: 4 GB for half an hour are
2 GB·h. A GB is 10^9 bytes. The memory is the process's peak where it was measured, else the conversion's memory limit;
of a conversion on several processes, such as Dask's, neither is known.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import groupby

from pydantic import computed_field

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.lineage import Lineage
from reshard.core.errors import InputError
from reshard.core.reports.blocks import Block
from reshard.core.reports.report import Report
from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import Summary
from reshard.core.text.options import option
from reshard.core.text.printing import printable

UNKNOWN = "unknown"
"""Who started a conversion, where nothing recorded it."""


class ConversionState(StrEnum):
    """How far a conversion has come; `waiting`: for approval."""

    COMMITTED = "committed"
    UNFINISHED = "unfinished"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CRASHED = "crashed"
    UNREADABLE = "unreadable"


FAILURES = frozenset({ConversionState.FAILED, ConversionState.CRASHED, ConversionState.UNREADABLE})
"""States in which somebody has to do something."""


class MemoryBasis(StrEnum):
    """What a conversion's memory is: the peak of its process, or the limit that it was given."""

    PEAK = "peak"
    LIMIT = "limit"


class HistoryEntry(Summary):
    """One conversion.

    Attributes:
        state: how far it has come.
        reason: why it failed, was cancelled or refused, or is not finished; one line.
        queued: when it was to begin, UTC; known to a server only.
        begun: when it began, UTC.
        ended: when it ended, UTC.
        seconds: time that it ran, in all attempts, without the time that it waited for approval. From a manifest: of
            the run that finished the target.
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        target: URL of the target.
        source_world_size: number of source ranks.
        target_world_size: number of target ranks.
        read_bytes: bytes read from the source by this run.
        written_bytes: bytes of the files that this run wrote.
        size_bytes: bytes of all files of the target, whichever run wrote them.
        resumed_ranks: target ranks that earlier runs had written.
        retried_requests: requests to remote storages that were repeated after transient failures.
        attempts: number of times that the run was started; its retries, and its start after approval, count.
        verified: how closely the target was checked.
        fingerprint: the target's, if values were compared and it is not encrypted.
        memory_bytes: memory that the cost is computed with.
        memory_basis: what this memory is.
        started_by: who or what started it; `unknown` if nobody recorded it.
        ran_as: user and machine that carried it out, `user@host`.
        approval: what was answered when approval was asked for, with the comment; None if nobody was asked, or nobody
            has answered. Prefect does not record who answered.
        identity: identity of the plan.
        deployment: name of the deployment; of a conversion below another run, that run's.
        flow_run: name of the flow run.
        flow_run_id: id of the flow run.
    """

    state: ConversionState
    reason: str = ""
    queued: datetime | None = None
    begun: datetime | None = None
    ended: datetime | None = None
    seconds: float | None = None
    source: str | None = None
    step: str | None = None
    target: str | None = None
    source_world_size: int | None = None
    target_world_size: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    size_bytes: int | None = None
    resumed_ranks: int | None = None
    retried_requests: int | None = None
    attempts: int | None = None
    verified: VerifyLevel | None = None
    fingerprint: str | None = None
    memory_bytes: int | None = None
    memory_basis: MemoryBasis | None = None
    started_by: str = UNKNOWN
    ran_as: str | None = None
    approval: str | None = None
    identity: str | None = None
    deployment: str | None = None
    flow_run: str | None = None
    flow_run_id: str | None = None

    @computed_field(description="memory_bytes / 10^9 times seconds / 3600")  # type: ignore[prop-decorator]
    @property
    def cost_gb_hours(self) -> float | None:
        """The cost in GB·h; None if memory or time are not known."""
        if self.memory_bytes is None or self.seconds is None:
            return None
        return round(self.memory_bytes / 1e9 * self.seconds / 3600, 9)

    @property
    def when(self) -> datetime:
        """The time by which entries are ordered: the beginning, or the next best that is known."""
        return self.begun or self.queued or self.ended or datetime.min.replace(tzinfo=UTC)


class HistoryFilter(Record):
    """Which entries are wanted: begun since a time, in one of these states, with places that match these patterns."""

    since: datetime | None = None
    states: Collection[ConversionState] = ()
    source: str = ""
    target: str = ""

    def matches(self, entry: HistoryEntry) -> bool:
        """True if an entry is wanted."""
        return (
            (self.since is None or entry.when >= self.since)
            and (not self.states or entry.state in self.states)
            and _is_like(entry.source, self.source)
            and _is_like(entry.target, self.target)
        )


ALL_ENTRIES = HistoryFilter()


def _is_like(place: str | None, pattern: str) -> bool:
    """True if a place, or a part of it where the pattern has no wildcards, is like a pattern; all are like none."""
    if not pattern:
        return True
    if not any(wildcard in pattern for wildcard in "*?["):
        return pattern in (place or "")
    return fnmatchcase(place or "", pattern)


class Totals(Summary):
    """Sums over conversions; what is not known of one of them adds nothing.

    Attributes:
        begin: first day of the period, UTC; None: of all times.
        conversions: number of conversions.
        states: number of conversions in each state that occurs.
        failed: number of them that failed, were killed, or cannot be read.
        read_bytes: bytes read from sources.
        written_bytes: bytes written to targets.
        seconds: time that they ran.
        cost_gb_hours: their cost in GB·h.
    """

    begin: date | None = None
    conversions: int
    states: dict[ConversionState, int]
    failed: int
    read_bytes: int
    written_bytes: int
    seconds: float
    cost_gb_hours: float


class History(Report):
    """Conversions, those that began last first.

    Attributes:
        entries: the conversions.
        totals: sums over these.
        is_cut: True if there are more conversions than were asked for.
        lineage: of a single finished conversion, the way from training to it, if it has statements.
    """

    entries: tuple[HistoryEntry, ...]
    totals: Totals
    is_cut: bool = False
    lineage: Lineage | None = None

    def blocks(self) -> Iterable[Block]:
        """Return its content: a row for each conversion, and the sums."""
        from reshard.core.conversion.views.history import history_blocks

        return history_blocks(self)


def make_history(entries: Iterable[HistoryEntry], limit: int | None = None) -> History:
    """Order entries, and sum up the first of them, up to a limit."""
    ordered = sorted(entries, key=lambda entry: entry.when, reverse=True)
    kept = tuple(ordered[:limit])
    return History(entries=kept, totals=total(kept), is_cut=len(kept) < len(ordered))


def total(entries: Sequence[HistoryEntry], begin: date | None = None) -> Totals:
    """Sum up entries."""
    states = [entry.state for entry in entries]
    return Totals(
        begin=begin,
        conversions=len(entries),
        states={state: states.count(state) for state in ConversionState if state in states},
        failed=sum(state in FAILURES for state in states),
        read_bytes=sum(entry.read_bytes or 0 for entry in entries),
        written_bytes=sum(entry.written_bytes or 0 for entry in entries),
        seconds=round(sum(entry.seconds or 0 for entry in entries), 3),
        cost_gb_hours=round(sum(entry.cost_gb_hours or 0 for entry in entries), 9),
    )


def totals_by_day(entries: Iterable[HistoryEntry]) -> list[Totals]:
    """Sum up entries by the day on which they began, UTC, the latest first."""
    return _totals_by(entries, 1)


def totals_by_week(entries: Iterable[HistoryEntry]) -> list[Totals]:
    """Sum up entries by the week in which they began, from Monday to Sunday, UTC, the latest first."""
    return _totals_by(entries, 7)


def _totals_by(entries: Iterable[HistoryEntry], days: int) -> list[Totals]:
    def begin(entry: HistoryEntry) -> date:
        # day 1 of this calendar was a Monday
        return date.fromordinal((entry.when.toordinal() - 1) // days * days + 1)

    ordered = sorted(entries, key=begin, reverse=True)
    return [total(list(some), first) for first, some in groupby(ordered, begin)]


def parse_since(text: str, now: datetime) -> datetime:
    """Parse the begin of a history: a time before now (`90m`, `12h`, `7d`, `4w`), or a date or time, by default UTC.

    Raises:
        InputError: it is neither.
    """
    if ago := _AGO.fullmatch(text.strip()):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            f"{option('since')}: '{printable(text)}' is not a time; give one before now, such as 12h, 7d or 4w, or a "
            "date, such as 2026-11-26"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


_AGO = re.compile(r"(\d{1,9})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def cost_text(gb_hours: float) -> str:
    """Format a cost: three digits after the point, and none where they tell nothing."""
    if 0 < gb_hours < 0.001:
        return "<0.001"
    return f"{gb_hours:,.0f}" if gb_hours >= 100 else f"{gb_hours:.3f}"
