"""When a schedule fires: the times that a user names, in the words and the arithmetic of Prefect."""

import asyncio
import re
from datetime import datetime, timedelta
from typing import Any

from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule, RRuleSchedule
from prefect.server.schemas import schedules as of_server
from pydantic import ValidationError

from reshard.core.errors import InputError
from reshard.core.text.options import option

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EVERY = re.compile(r"([1-9]\d{0,5})([smhd])")
_SIZES = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_UTC = "UTC"
Timing = CronSchedule | IntervalSchedule


def cron_timing(cron: str, timezone: str = "") -> CronSchedule:
    """Return the timing of a cron expression; without a time zone it is UTC's.

    Raises:
        InputError: the expression or the time zone is none, or it never fires.
    """
    try:
        timing = CronSchedule(cron=cron, timezone=timezone or _UTC)
    except ValidationError as error:
        given = {"cron": cron, "timezone": timezone}
        wrong = [str(detail["loc"][0]) for detail in error.errors()]
        raise InputError("\n".join(_reason(name, given[name]) for name in wrong)) from error
    if not next_times(timing, 1):
        raise InputError(f"{option('cron', cron)}: never fires: there is no such day")
    return timing


def interval_timing(every: str) -> IntervalSchedule:
    """Return the timing of an interval such as `10m`, from now on.

    Raises:
        InputError: it is not a number with a unit.
    """
    found = _EVERY.fullmatch(every.strip())
    if not found:
        raise InputError(
            f"{option('every', every)}: not an interval: give a number and s, m, h or d, such as 10m or 6h"
        )
    return IntervalSchedule(interval=timedelta(**{_UNITS[found[2]]: int(found[1])}))


def next_times(timing: SCHEDULE_TYPES, count: int) -> list[datetime]:
    """Return the next times at which a schedule fires, as the server computes them."""
    kind: Any = getattr(of_server, type(timing).__name__)
    try:
        return list(asyncio.run(kind(**timing.model_dump()).get_dates(count)))
    except ValueError:
        return []  # no such day in the years to come


def timing_text(timing: SCHEDULE_TYPES) -> str:
    """Format when a schedule fires: `0 2 * * * Europe/Berlin`, or `every 10m`."""
    if isinstance(timing, CronSchedule):
        return f"{timing.cron} {timing.timezone or _UTC}"
    if isinstance(timing, IntervalSchedule):
        seconds = int(timing.interval.total_seconds())
        size, unit = next((size, unit) for size, unit in _SIZES if seconds % size == 0)
        return f"every {seconds // size}{unit}"
    return timing.rrule if isinstance(timing, RRuleSchedule) else "never"


def _reason(name: str, value: str) -> str:
    if name == "cron":
        return (
            f"{option('cron', value)}: not a cron expression: give minute, hour, day of the month, month and weekday, "
            "such as '0 2 * * *' for every night at two"
        )
    return f"{option('timezone', value)}: no such time zone: give a name such as Europe/Berlin or UTC"
