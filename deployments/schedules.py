"""Checks the parameters of schedules by the form of their deployment.

Prefect checks those of runs that people and programs start, and not those of schedules: a scheduled run with a field
that the form does not have ends as Crashed, before the flow begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from prefect.utilities.schema_tools.validation import validate

from reshard.core.errors import InputError

_PLACEHOLDER = "__prefect_kind"
"""Marks a value that the server fills in when it makes a run."""


class Scheduled(Protocol):
    """A schedule as prefect.yaml describes it, or as a server has it."""

    @property
    def active(self) -> bool | None:
        """False if it is switched off."""

    @property
    def slug(self) -> str | None:
        """Its name, if it has one."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of its runs."""


def check_schedules(deployment: str, schema: Mapping[str, Any], schedules: Sequence[Scheduled]) -> None:
    """Raise InputError if runs of schedules that are yet to be made would fail by their parameters."""
    problems = list(schedule_problems(deployment, schema, schedules))
    if problems:
        raise InputError("\n".join(problems))


def schedule_problems(deployment: str, schema: Mapping[str, Any], schedules: Sequence[Scheduled]) -> Iterator[str]:
    """Yield, in sentences, what is wrong with the parameters of schedules that are switched on."""
    for schedule in schedules:
        if schedule.active is False or _PLACEHOLDER in repr(schedule.parameters):
            continue
        errors = validate(schedule.parameters, dict(schema))
        reasons = [f"{each.json_path.removeprefix('$.')}: {each.message}".removeprefix("$: ") for each in errors]
        if reasons:
            name = f"schedule {schedule.slug}" if schedule.slug else "a schedule"
            yield f"{name} of {deployment}: its runs fail: {'; '.join(reasons)}"
