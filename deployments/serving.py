"""Serves the deployments from this process, without a worker."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.flows import load_flow_from_entrypoint
from prefect.runner import Runner

from reshard import __version__
from reshard.core.errors import InputError
from reshard.deployments.deploy import make_triggers
from reshard.deployments.described import Described
from reshard.deployments.form_groups import form_schema
from reshard.deployments.schedules import schedule_problems

_GRACE_SECONDS = 30
_POLL_SECONDS = 0.1


class ServingRunner(Runner):
    """A runner that SIGTERM stops as Ctrl-C does; Prefect leaves a coroutine that nobody awaits."""

    async def start(self, run_once: bool = False, webserver: bool | None = None) -> None:
        """Serve until cancelled, or stopped by a signal."""
        self._task = asyncio.current_task()
        await super().start(run_once, webserver)

    def handle_sigterm(self, *args: object, **kwargs: object) -> None:
        """Pass the signal on to runs, which end by it and say so on the server, then cancel what is going on here."""
        # Prefect leaves the processes of runs behind; nothing public names them
        processes = self._process_manager
        handles = [handle for handle in map(processes.get, processes.flow_run_ids()) if handle and handle.is_alive()]
        for handle in handles:
            handle.graceful_kill()
        if self._task is not None:
            # not in the handler itself, which interrupts the event loop anywhere
            self._task.get_loop().call_soon_threadsafe(
                self._cancel_once,
                lambda: not any(handle.is_alive() for handle in handles),
                time.monotonic() + _GRACE_SECONDS,
            )

    def _cancel_once(self, runs_ended: Callable[[], bool], deadline: float) -> None:
        """Cancel what is going on here when no run is left: Prefect would signal it again, and it would say nothing."""
        assert self._task is not None
        if runs_ended() or time.monotonic() > deadline:
            self._task.cancel()
        else:
            self._task.get_loop().call_later(_POLL_SECONDS, self._cancel_once, runs_ended, deadline)


def served_deployments(client: SyncPrefectClient, descriptions: Sequence[Described]) -> list[RunnerDeployment]:
    """Return the deployments to be served; each keeps the schedules that it has on the server.

    They have no triggers: Prefect would replace their automations each time, and a user's changes would be lost.

    Raises:
        InputError: a deployment belongs to a work pool; serving would take it away from the workers.
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
    """Register the deployments with their forms, and make the automations that start them; yield these automations.

    Schedules on the server whose runs would fail by their parameters are yielded, too.
    """
    for described, deployment in zip(descriptions, deployments, strict=True):
        # a coroutine only where an event loop runs
        deployment_id = cast(UUID, runner.add_deployment(deployment))
        flow: Flow[..., object] = load_flow_from_entrypoint(described.entrypoint)
        schema = form_schema(flow)
        client.update_deployment(deployment_id, DeploymentUpdate(parameter_openapi_schema=schema))
        there = client.read_deployment(deployment_id)
        yield from schedule_problems(f"{flow.name}/{described.name}", schema, there.schedules)
        yield from make_triggers(client, described, deployment_id)


def serve_here(runner: Runner, descriptions: Sequence[Described]) -> None:
    """Serve the registered deployments until the process is stopped."""
    for described in descriptions:
        # runs inherit the variables: served deployments have no job variables
        for name, value in described.work_pool.environment.items():
            os.environ.setdefault(name, value)
    # both mean that the process is stopped
    with suppress(KeyboardInterrupt, TerminationSignal, asyncio.CancelledError):
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
    # otherwise Prefect would delete schedules that were made on the server's pages
    return [
        DeploymentScheduleCreate(
            schedule=schedule.schedule, active=schedule.active, parameters=schedule.parameters, slug=schedule.slug
        )
        for schedule in found.schedules
    ]
