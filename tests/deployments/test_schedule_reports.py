"""What `reshard schedule` tells of schedules; `test_job_schedules.py` has it of a server's."""

from datetime import timedelta
from typing import Any

import pytest
from prefect.client.schemas.schedules import IntervalSchedule

from reshard.deployments.job_schedules import JobSchedule
from reshard.deployments.schedule_reports import ScheduleList, ScheduleReport, summarize_schedule

PARAMETERS = {"source": "/data/checkpoint", "target": "/data/serving"}


def schedule(**fields: Any) -> JobSchedule:
    return JobSchedule("llama", IntervalSchedule(interval=timedelta(minutes=10)), PARAMETERS, **fields)


def report(**fields: Any) -> ScheduleReport:
    told: dict[str, Any] = dict(summarize_schedule(schedule())) | {"outcome": "made", "dry_run": False} | fields
    return ScheduleReport(**told)


def test_a_list_has_a_row_for_each_and_then_what_is_wrong() -> None:
    each = summarize_schedule(schedule(active=False))
    shown = str(ScheduleList(schedules=(each,), problems=("schedule llama: its runs fail",))).splitlines()
    assert shown[0].split() == ["name", "fires", "next", "source", "target"]
    assert shown[1].split() == ["llama", "every", "10m", "paused", "/data/checkpoint", "/data/serving"]
    assert shown[2:] == ["(schedule llama: its runs fail)"]


def test_an_empty_list_says_how_to_make_one() -> None:
    shown = str(ScheduleList(schedules=(), problems=()))
    assert shown == "no schedules; reshard schedule SOURCE TARGET --cron … makes one"


def test_times_are_documented_with_their_zone_and_without_fractions() -> None:
    document = report().to_dict()
    assert [len(each) for each in document["next"]] == [len("2026-11-26T02:00:00+00:00")] * 3
    assert document.keys() == {"name", "when", "active", "next", "parameters", "outcome", "dry_run"}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "schedule  llama, made"),
        ({"dry_run": True}, "schedule  llama, would be made"),
        ({"dry_run": True, "outcome": "unchanged"}, "schedule  llama, unchanged"),
        ({"active": False}, "note      it is paused; switch it on with: reshard schedule --resume llama"),
        ({"is_unserved": True}, "note      its deployment is paused: start 'reshard serve', or resume it in the UI"),
    ],
)
def test_what_became_of_a_schedule(fields: dict[str, Any], line: str) -> None:
    assert any(each.startswith(line) for each in str(report().model_copy(update=fields)).splitlines())
