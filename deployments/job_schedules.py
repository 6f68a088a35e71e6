"""Schedules of convert-latest, one for each training job: made, listed, paused and removed by name.

They are schedules of the one deployment, with the parameters of their runs. `reshard deploy` leaves them as they are,
and `reshard serve` takes them over.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from reshard.core.errors import InputError
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.records import Record
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.text.options import option
from reshard.core.text.printing import printable
from reshard.deployments.places import relative_places
from reshard.deployments.schedules import check_schedules
from reshard.deployments.timing import Timing, timing_text

LATEST = "convert-latest-checkpoint/convert-latest"


class JobSchedule(Record):
    """A schedule to be made; the fields are those that Prefect's own records of schedules have, too."""

    slug: str
    schedule: Timing
    parameters: dict[str, Any]
    active: bool = True


Schedule = JobSchedule | DeploymentSchedule


class PutSchedule(Record):
    """A schedule as it is now on the server: `made`, `changed` or `unchanged`."""

    outcome: str
    schedule: Schedule


def scheduled_parameters(request: LatestConversionRequest) -> dict[str, Any]:
    """Return the parameters of a schedule's runs: what differs from the defaults.

    Raises:
        InputError: a run could not find a place, because its path is relative.
    """
    if relative := relative_places(request):
        raise InputError("\n".join(f"{option(name)} {why}" for name, why in relative.items()))
    return request.model_dump(mode="json", exclude_defaults=True, exclude={"dry_run"})


def default_name(target: str) -> str:
    """Return the name of a schedule that was given none: the last two names of its target."""
    return "-".join(target.rstrip("/").rpartition("://")[2].split("/")[-2:]).strip("-")


def find_deployment(client: SyncPrefectClient) -> DeploymentResponse:
    """Return the deployment whose schedules these are.

    Raises:
        InputError: the server does not have it.
    """
    try:
        return client.read_deployment_by_name(LATEST)
    except ObjectNotFound as error:
        raise InputError(
            f"the server has no deployment {LATEST}: run reshard deploy, or reshard serve, first"
        ) from error


def name_of(schedule: Schedule) -> str:
    """Return the name of a schedule; one that was made without a name has its id."""
    return schedule.slug if isinstance(schedule, JobSchedule) else schedule.slug or str(schedule.id)


def find_schedule(deployment: DeploymentResponse, name: str) -> DeploymentSchedule:
    """Return the schedule of this name.

    Raises:
        InputError: there is none.
    """
    there = {name_of(each): each for each in deployment.schedules}
    if name not in there:
        raise InputError(f"no schedule {name!r} on the server, which has {_listed(there)}{did_you_mean(name, there)}")
    return there[name]


def put_schedule(
    client: SyncPrefectClient, deployment: DeploymentResponse, wanted: JobSchedule, *, is_named: bool, dry_run: bool
) -> PutSchedule:
    """Make a schedule, or change the one of its name; with `dry_run` only find out which.

    Raises:
        InputError: the server's form refuses the parameters; or the name was not given, and belongs to another target.
    """
    check_schedules(LATEST, deployment.parameter_openapi_schema or {}, [wanted])
    there = next((each for each in deployment.schedules if each.slug == wanted.slug), None)
    if there is None:
        if not dry_run:
            new = DeploymentScheduleCreate(
                schedule=wanted.schedule, parameters=wanted.parameters, active=True, slug=wanted.slug
            )
            client.create_deployment_schedules(deployment.id, [new])
        return PutSchedule("made", wanted)
    former = there.parameters.get("target")
    if not is_named and former not in (None, wanted.parameters["target"]):
        raise InputError(
            f"the schedule {wanted.slug} has another target, {former}: choose another {option('name')} for this one, "
            f"or update that one with {option('name', wanted.slug)}"
        )
    if there.parameters == wanted.parameters and timing_text(there.schedule) == timing_text(wanted.schedule):
        return PutSchedule("unchanged", there)
    if not dry_run:
        client.update_deployment_schedule(
            deployment.id, there.id, schedule=wanted.schedule, parameters=wanted.parameters
        )
    return PutSchedule("changed", msgspec.structs.replace(wanted, active=there.active))


def switch_schedule(
    client: SyncPrefectClient, deployment: DeploymentResponse, schedule: DeploymentSchedule, *, active: bool
) -> None:
    """Switch a schedule on or off; its parameters are sent along, or the server would drop them."""
    client.update_deployment_schedule(deployment.id, schedule.id, active=active, parameters=schedule.parameters)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(printable, sorted(names))) or "none"
