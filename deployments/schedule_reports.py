"""What `reshard schedule` tells: the schedules of a server, and what became of one."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import Field, field_serializer

from reshard.core.reports.blocks import Block, Facts, Line, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.deployments.job_schedules import Schedule, name_of
from reshard.deployments.timing import next_times, timing_text

_NEXT_TIMES = 3


class ScheduleSummary(Summary):
    """A schedule.

    Attributes:
        name: its name, or id.
        when: when it fires.
        active: whether it is switched on.
        next: the next times at which it fires; none of a paused one.
        parameters: those of its runs.
    """

    name: str
    when: str
    active: bool
    next: tuple[datetime, ...]
    parameters: Mapping[str, Any]

    @field_serializer("next")
    def _iso(self, moments: tuple[datetime, ...]) -> list[str]:
        return [each.isoformat(timespec="seconds") for each in moments]


class ScheduleList(Report):
    """The schedules of a server, and, in sentences, what is wrong with some of them."""

    schedules: tuple[ScheduleSummary, ...]
    problems: tuple[str, ...]

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a row for each schedule, then the problems."""
        if not self.schedules:
            yield Line("no schedules; reshard schedule SOURCE TARGET --cron … makes one")
            return
        rows = [
            (
                each.name,
                each.when,
                _next_text(each),
                *(each.parameters.get(place, "-") for place in ("source", "target")),
            )
            for each in self.schedules
        ]
        yield Table(("name", "fires", "next", "source", "target"), rows, optional=("source", "fires"))
        for problem in self.problems:
            yield Line(f"({problem})")


class ScheduleReport(ScheduleSummary, Report):
    """A schedule that was made or changed.

    Attributes:
        outcome: `made`, `changed` or `unchanged`.
        dry_run: True if it only would be.
        is_unserved: True if its deployment is paused.
    """

    outcome: str
    dry_run: bool
    is_unserved: bool = Field(default=False, exclude=True)

    def blocks(self) -> Iterator[Block]:
        """Yield its content as facts."""
        yield Facts(self.facts)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What became of it, when it fires, and what keeps it from that."""
        outcome = f"would be {self.outcome}" if self.dry_run and self.outcome != "unchanged" else self.outcome
        facts = [("schedule", f"{self.name}, {outcome}"), ("fires", self.when)]
        facts += [(f"next {number}", _time_text(each)) for number, each in enumerate(self.next, start=1)]
        if not self.active:
            facts.append(("note", f"it is paused; switch it on with: reshard schedule --resume {self.name}"))
        if self.is_unserved:
            facts.append(("note", "its deployment is paused: start 'reshard serve', or resume it in the UI"))
        return facts


def summarize_schedule(schedule: Schedule) -> ScheduleSummary:
    """Return what there is to tell about a schedule."""
    return ScheduleSummary(
        name=name_of(schedule),
        when=timing_text(schedule.schedule),
        active=schedule.active,
        next=tuple(next_times(schedule.schedule, _NEXT_TIMES)) if schedule.active else (),
        parameters=schedule.parameters,
    )


def _next_text(schedule: ScheduleSummary) -> str:
    if schedule.next:
        return _time_text(schedule.next[0])
    return "-" if schedule.active else "paused"


def _time_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M %z")
