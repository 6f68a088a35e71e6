"""What the parameters of a schedule are checked by, and when."""

from typing import Any

import pytest
from prefect.schedules import Interval

from reshard.core.errors import InputError
from reshard.deployments.form_groups import form_schema
from reshard.deployments.forms import convert_latest
from reshard.deployments.schedules import check_schedules, schedule_problems

LATEST = "convert-latest-checkpoint/convert-latest"
RIGHT = {"source": "/data/ckpt", "target": "/data/converted"}


def problems(parameters: dict[str, Any], *, active: bool = True, slug: str | None = "nightly") -> list[str]:
    schedule = Interval(600, parameters=parameters, active=active, slug=slug)
    return list(schedule_problems(LATEST, form_schema(convert_latest), [schedule]))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (RIGHT | {"tarjet": "/data/other"}, "Unevaluated properties are not allowed ('tarjet' was unexpected)"),
        ({"source": "/data/ckpt"}, "'target' is a required property"),
        (RIGHT | {"target": "converted"}, "target: 'an absolute path such as /data/x, "),
        (RIGHT | {"workers": -1}, "workers: -1 is less than the minimum of 0"),
    ],
)
def test_a_schedule_whose_runs_fail_is_named(parameters: dict[str, Any], reason: str) -> None:
    (problem,) = problems(parameters)
    assert problem.startswith(f"schedule nightly of {LATEST}: its runs fail: {reason}")
    assert problems(parameters, slug=None)[0].startswith(f"a schedule of {LATEST}: ")
    assert not problems(parameters, active=False)


def test_schedules_that_are_right_are_left_alone() -> None:
    assert not problems(RIGHT)
    assert not problems(RIGHT | {"source": {"__prefect_kind": "workspace_variable", "variable_name": "checkpoint"}})


def test_a_schedule_with_a_mistyped_field_is_not_made() -> None:
    schedule = Interval(600, parameters=RIGHT | {"tarjet": "/data/other"}, slug="nightly")
    with pytest.raises(InputError, match="schedule nightly of .*'tarjet' was unexpected"):
        check_schedules(LATEST, form_schema(convert_latest), [schedule])
