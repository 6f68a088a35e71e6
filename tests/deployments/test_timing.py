"""When schedules fire, and what is said of times that are none."""

from datetime import timedelta

import pytest
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

from reshard.cli.spelling import flag
from reshard.core.errors import InputError
from reshard.core.text.options import spelled_by
from reshard.deployments.timing import cron_timing, interval_timing, next_times, timing_text


def test_a_cron_expression_is_in_utc_unless_a_zone_is_named() -> None:
    assert cron_timing("0 2 * * *") == CronSchedule(cron="0 2 * * *", timezone="UTC")
    assert timing_text(cron_timing("0 2 * * *", "Europe/Berlin")) == "0 2 * * * Europe/Berlin"


@pytest.mark.parametrize(
    ("cron", "timezone", "message"),
    [
        (
            "0 25 * * *",
            "",
            "--cron '0 25 * * *': not a cron expression: give minute, hour, day of the month, month and",
        ),
        ("nightly", "", "--cron nightly: not a cron expression: "),
        ("H 2 * * *", "", "--cron 'H 2 * * *': not a cron expression: "),
        ("0 0 31 2 *", "", "--cron '0 0 31 2 *': never fires: there is no such day"),
        ("0 2 * * *", "Berlin", "--timezone Berlin: no such time zone: give a name such as Europe/Berlin or UTC"),
    ],
)
def test_what_is_wrong_with_a_cron_expression(cron: str, timezone: str, message: str) -> None:
    with pytest.raises(InputError) as caught, spelled_by(flag):
        cron_timing(cron, timezone)
    with spelled_by(flag):
        assert str(caught.value).startswith(message)


def test_expression_and_zone_are_both_named_if_both_are_wrong() -> None:
    with pytest.raises(InputError) as caught:
        cron_timing("never", "Nowhere")
    assert str(caught.value).count("\n") == 1


@pytest.mark.parametrize(
    ("every", "interval"),
    [
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("90m", timedelta(minutes=90)),
        ("1d", timedelta(1)),
    ],
)
def test_an_interval_is_a_number_with_a_unit(every: str, interval: timedelta) -> None:
    timing = interval_timing(every)
    assert timing.interval == interval
    assert timing_text(timing) == f"every {every}"
    first, second = next_times(timing, 2)
    assert second - first == interval


@pytest.mark.parametrize("every", ["10", "0m", "1w", "-5m", "1.5h", "m"])
def test_other_intervals_are_refused(every: str) -> None:
    with pytest.raises(InputError) as caught, spelled_by(flag):
        interval_timing(every)
    with spelled_by(flag):
        assert str(caught.value) == (
            f"--every {every}: not an interval: give a number and s, m, h or d, such as 10m or 6h"
        )


def test_schedules_that_were_made_on_the_servers_pages_have_a_text_too() -> None:
    assert timing_text(IntervalSchedule(interval=timedelta(seconds=3601))) == "every 3601s"
    assert timing_text(RRuleSchedule(rrule="FREQ=DAILY")) == "FREQ=DAILY"
    assert len(next_times(RRuleSchedule(rrule="FREQ=DAILY"), 2)) == 2
