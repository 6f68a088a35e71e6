"""Deploys the flows, and everything that they need, to a Prefect server.

Deployments are brought up to date. Everything else is made if it is missing, and never changed: the slots of a limit,
the state and the parameters of a schedule or an automation belong to the server's operators. Only an automation that
would start a deleted deployment is given the new one.

`prefect deploy` is not used: it has no limits and no automations, resets schedules and replaces triggers each time.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.automations import AutomationCore
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    DeploymentUpdate,
    GlobalConcurrencyLimitCreate,
    WorkPoolCreate,
)
from prefect.client.schemas.objects import ConcurrencyOptions, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import EventTrigger, Posture, ResourceSpecification
from prefect.events.actions import ActionTypes, ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.workers.process import ProcessWorker

from reshard import __version__
from reshard.deployments.alerts import (
    ALERTS_AUTOMATION,
    EXPIRED_AUTOMATION,
    alerts_automation,
    expired_automation,
    find_block,
    leave_failures_to_runs,
    notified_blocks,
)
from reshard.deployments.described import Described, WorkPool
from reshard.deployments.form_groups import form_schema
from reshard.deployments.schedules import check_schedules, schedule_problems

RANKS_LIMIT = "reshard-ranks"
"""The global concurrency limit for the parameter `concurrency_limit` of runs."""

_RANKS_LIMIT_SLOTS = 8
CRASHED_AUTOMATION = "reshard: killed runs are crashed"
_ENDED = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}
_WAITING = {"prefect.flow-run.Suspended", "prefect.flow-run.Paused"}
"""States without heartbeats of runs that are to go on."""
HEARTBEATS_MISSED = timedelta(seconds=90)
"""Three heartbeats, as prefect.yaml sets them."""


def deploy(client: SyncPrefectClient, descriptions: Sequence[Described], notify: str = "") -> Iterator[str]:
    """Deploy everything to a server; yield the result for each object as soon as it is done.

    `notify` names the notification block of alerts; without one there are none, unless they were made earlier.

    Raises:
        InputError: there is no such block, or runs of a described schedule would fail by its parameters.
        PrefectException, httpx.HTTPError: the server refused an object, or stopped answering.
    """
    # a broken entrypoint is found before anything is made
    flows: list[Flow[..., Any]] = [load_flow_from_entrypoint(described.entrypoint) for described in descriptions]
    for described, flow in zip(descriptions, flows, strict=True):
        check_schedules(f"{flow.name}/{described.name}", form_schema(flow), described.schedules)
    block = find_block(client, notify) if notify else None
    for pool in {each.work_pool.name: each.work_pool for each in descriptions}.values():
        yield f"work pool {pool.name}: {_made_if(_make_pool(client, pool))}"
    yield from make_what_runs_need(client, descriptions)
    yield f"automation {ALERTS_AUTOMATION}: {_make_alerts(client, _tags(descriptions), block)}"
    for described, flow in zip(descriptions, flows, strict=True):
        yield from _deploy_one(client, described, flow)


def make_what_runs_need(client: SyncPrefectClient, descriptions: Sequence[Described]) -> Iterator[str]:
    """Make the limit and the automation that all runs need, wherever they are carried out; yield the results."""
    yield f"concurrency limit {RANKS_LIMIT}: {_made_if(_make_ranks_limit(client))}"
    automation = crashed_automation(_tags(descriptions))
    mended = [_spare_waiting(client, there) for there in client.read_automations_by_name(automation.name)]
    made = _made_if(_make_automation(client, automation))
    yield f"automation {automation.name}: {'mended: it took suspended runs for killed ones' if any(mended) else made}"


def make_triggers(client: SyncPrefectClient, described: Described, deployment_id: UUID) -> Iterator[str]:
    """Make the automations that start an existing deployment; yield the results."""
    for trigger in described.triggers:
        trigger.set_deployment_id(deployment_id)
        automation = trigger.as_automation()
        # automations that a deployment owns are deleted whenever it is served, with a user's changes
        automation.owner_resource = None
        mended = [_mend(client, there, deployment_id) for there in client.read_automations_by_name(automation.name)]
        made = _made_if(_make_automation(client, automation))
        yield f"automation {automation.name}: {'mended: it started a deployment that is gone' if any(mended) else made}"


def crashed_automation(tags: Sequence[str], missed: timedelta = HEARTBEATS_MISSED) -> AutomationCore:
    """Return the automation that ends runs as Crashed whose process was killed together with its worker.

    A living worker notices a killed process at once.
    """
    return AutomationCore(
        name=CRASHED_AUTOMATION,
        description="A run that was running and gives no sign of life was killed with its worker; a retry resumes.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *_ENDED, *_WAITING},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification({"prefect.resource.id": [f"prefect.tag.{tag}" for tag in tags]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=missed,
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed",
                state=StateType.CRASHED,
                message=f"No sign of life for {missed.seconds} s: its process was killed. A retry resumes.",
                force=False,
            )
        ],
    )


def _tags(descriptions: Sequence[Described]) -> list[str]:
    return sorted({tag for each in descriptions for tag in each.tags})


def _make_alerts(client: SyncPrefectClient, tags: Sequence[str], block: UUID | None) -> str:
    there = client.read_automations_by_name(ALERTS_AUTOMATION)
    if not there:
        if block is None:
            return "not made: whom to notify is named by --notify TYPE/NAME"
        made = alerts_automation(tags, block)
        for former in client.read_automations_by_name(EXPIRED_AUTOMATION):
            client.delete_automation(former.id)
        _make_automation(client, expired_automation(tags, made))
        return _made_if(_make_automation(client, made))
    _make_automation(client, expired_automation(tags, there[0]))
    mended = [leave_failures_to_runs(client, each) for each in there]
    done = "mended: runs that fail notify by themselves" if any(mended) else _made_if(False)
    notified = notified_blocks(client, there)
    return done + (f"; it notifies by {', '.join(notified)}" if notified else "")


def _made_if(made: bool) -> str:
    return "made" if made else "is there already, left as it is"


def _make_pool(client: SyncPrefectClient, pool: WorkPool) -> bool:
    try:
        client.read_work_pool(pool.name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=pool.name, type=ProcessWorker.type, base_job_template=template))
        return True
    return False


def _make_ranks_limit(client: SyncPrefectClient) -> bool:
    try:
        client.read_global_concurrency_limit_by_name(RANKS_LIMIT)
    except ObjectNotFound:
        limit = GlobalConcurrencyLimitCreate(name=RANKS_LIMIT, limit=_RANKS_LIMIT_SLOTS)
        client.create_global_concurrency_limit(limit)
        return True
    return False


def _make_automation(client: SyncPrefectClient, automation: AutomationCore) -> bool:
    if client.read_automations_by_name(automation.name):
        return False
    client.create_automation(automation)
    return True


def _spare_waiting(client: SyncPrefectClient, there: Automation) -> bool:
    """Let an older version's automation leave waiting runs alone; return True if that was needed."""
    trigger = there.trigger
    if not isinstance(trigger, EventTrigger) or trigger.expect >= _WAITING:
        return False
    kept = there.model_dump(exclude={"id", "trigger"}, exclude_unset=True)
    mended = trigger.model_copy(update={"expect": trigger.expect | _WAITING})
    client.update_automation(there.id, AutomationCore.model_validate(kept | {"trigger": mended}))
    return True


def _mend(client: SyncPrefectClient, there: Automation, deployment_id: UUID) -> bool:
    """Let an automation start this deployment in place of a deleted one; return True if that was needed."""
    actions = [_mended(client, action, deployment_id) for action in there.actions]
    if actions == there.actions:
        return False
    # everything else stays: whether it is on, its parameters, its other actions
    kept = there.model_dump(exclude={"id", "actions"}, exclude_unset=True)
    mended = AutomationCore.model_validate(kept | {"actions": actions})
    client.update_automation(there.id, mended)
    return True


def _mended(client: SyncPrefectClient, action: ActionTypes, deployment_id: UUID) -> ActionTypes:
    if not isinstance(action, RunDeployment) or action.deployment_id is None:
        return action
    try:
        client.read_deployment(action.deployment_id)
    except ObjectNotFound:
        return action.model_copy(update={"deployment_id": deployment_id})
    return action


def _deploy_one(client: SyncPrefectClient, described: Described, flow: Flow[..., Any]) -> Iterator[str]:
    full_name = f"{flow.name}/{described.name}"
    update = DeploymentUpdate(
        version=__version__,
        description=described.description,
        tags=described.tags,
        entrypoint=described.entrypoint,
        # the entrypoint is an import path: nothing is fetched, and the working directory stays
        path=None,
        pull_steps=[],
        parameters={},
        parameter_openapi_schema=form_schema(flow),
        enforce_parameter_schema=True,
        work_pool_name=described.work_pool.name,
        job_variables=described.work_pool.job_variables,
        **_limited(described),
    )
    there = _found(client, full_name)
    if there is None:
        fields = {name: getattr(update, name) for name in update.model_fields_set}
        schedules = [DeploymentScheduleCreate.from_schedule(schedule) for schedule in described.schedules]
        flow_id = client.create_flow_from_name(flow.name)
        deployment_id = client.create_deployment(flow_id, described.name, schedules=schedules, **fields)
        yield f"deployment {full_name}: made"
    else:
        deployment_id = there.id
        if not there.work_pool_name:
            # the process that served it until now has paused it at its end
            update.paused = False
        client.update_deployment(deployment_id, update)
        yield f"deployment {full_name}: brought up to date"
        yield from schedule_problems(full_name, form_schema(flow), there.schedules)
    yield from make_triggers(client, described, deployment_id)


def _limited(described: Described) -> dict[str, Any]:
    limit = described.concurrency_limit
    if limit is None:
        return {"concurrency_limit": None, "concurrency_options": None}
    return {
        "concurrency_limit": limit.limit,
        "concurrency_options": ConcurrencyOptions(collision_strategy=limit.collision_strategy),
    }


def _found(client: SyncPrefectClient, full_name: str) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(full_name)
    except ObjectNotFound:
        return None
