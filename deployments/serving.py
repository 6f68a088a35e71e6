"""The deployments served from this process, for those who have no worker."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.flows import load_flow_from_entrypoint
from prefect.runner import Runner

from reshard import __version__
from reshard.core.errors import InputError
from reshard.deployments.deploy import make_triggers
from reshard.deployments.described import Described


def served_deployments(client: SyncPrefectClient, descriptions: Sequence[Described]) -> list[RunnerDeployment]:
    """The deployments as they are to be served; each keeps the schedules that it has on the server.

    They have no triggers: Prefect would make their automations anew each time, and what a user changed would be lost.

    Raises:
        InputError: one of them belongs to a work pool; serving would take it away from the workers.
    """
    return [
        RunnerDeployment.from_entrypoint(
            described.entrypoint,
            described.name,
            description=described.description,
            tags=described.tags,
            concurrency_limit=described.concurrency_limit,
            schedules=_schedules(client, described),
            version=__version__,
        )
        for described in descriptions
    ]


def register(
    client: SyncPrefectClient,
    runner: Runner,
    descriptions: Sequence[Described],
    deployments: Sequence[RunnerDeployment],
) -> Iterator[str]:
    """Brings the deployments to the server, and makes the automations that start them; says what became of these."""
    for described, deployment in zip(descriptions, deployments, strict=True):
        # a coroutine only where an event loop runs
        deployment_id = cast(UUID, runner.add_deployment(deployment))
        yield from make_triggers(client, described, deployment_id)


def serve_here(runner: Runner, descriptions: Sequence[Described]) -> None:
    """Serves what is registered until the process is told to stop."""
    for described in descriptions:
        # runs inherit them: served deployments have no job variables
        for name, value in described.work_pool.environment.items():
            os.environ.setdefault(name, value)
    # both are how it is told to
    with suppress(KeyboardInterrupt, TerminationSignal):
        asyncio.run(runner.start())


def _schedules(client: SyncPrefectClient, described: Described) -> list[DeploymentScheduleCreate]:
    flow: Flow[..., object] = load_flow_from_entrypoint(described.entrypoint)
    full_name = f"{flow.name}/{described.name}"
    try:
        found = client.read_deployment_by_name(full_name)
    except ObjectNotFound:
        return [DeploymentScheduleCreate.from_schedule(schedule) for schedule in described.schedules]
    if found.work_pool_name:
        raise InputError(
            f"{full_name} is deployed to the work pool {found.work_pool_name} of this server: start a worker, "
            f"`prefect worker start --pool {found.work_pool_name}`, or delete the deployment to serve it from here"
        )
    # Prefect would delete those that were made on the server's pages
    return [
        DeploymentScheduleCreate(
            schedule=schedule.schedule, active=schedule.active, parameters=schedule.parameters, slug=schedule.slug
        )
        for schedule in found.schedules
    ]
