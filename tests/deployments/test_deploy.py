"""What `reshard deploy` makes on a server, and what it leaves as it is."""

import re
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.events import EventTrigger
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.schedules import Interval

from reshard import __version__
from reshard.deployments.deploy import CRASHED_AUTOMATION, RANKS_LIMIT
from tests.support.deployed import reshard
from tests.support.patience import until
from tests.support.prefect_server import PrefectServer

pytestmark = pytest.mark.slow

NAMES = {
    "convert-checkpoint/convert",
    "convert-checkpoint/convert-expert",
    "convert-checkpoint/convert-with-approval",
    "convert-latest-checkpoint/convert-latest",
    "verify-checkpoint/verify",
    "compare-checkpoints/compare",
    "merge-strategy/merge-strategy",
    "report-history/history",
}
LATEST = "convert-latest-checkpoint/convert-latest"
SAVED_AUTOMATION = "reshard: a checkpoint was saved"


def test_deployments_and_what_they_need_are_there(server: PrefectServer) -> None:
    client = server.client
    for name in NAMES:
        deployment = client.read_deployment_by_name(name)
        assert (deployment.work_pool_name, deployment.version, deployment.tags) == ("reshard", __version__, ["reshard"])
        assert not deployment.path
        assert not deployment.pull_steps
        assert "```" in str(deployment.description)
        texts = str(deployment.description).split("```")[::2]
        assert not [text for text in texts if re.search(r"\S\n\S", text)], "a paragraph with line breaks"
        assert deployment.enforce_parameter_schema
        assert ":" not in str(deployment.entrypoint)
    assert client.read_work_pool("reshard").type == "process"
    assert client.read_global_concurrency_limit_by_name(RANKS_LIMIT).active
    assert [automation.enabled for automation in client.read_automations_by_name(CRASHED_AUTOMATION)] == [True]
    assert [automation.enabled for automation in client.read_automations_by_name(SAVED_AUTOMATION)] == [True]


def test_only_one_looks_for_the_newest_step_at_once_and_its_schedule_is_off(server: PrefectServer) -> None:
    deployment = server.client.read_deployment_by_name(LATEST)
    limit, options = deployment.global_concurrency_limit, deployment.concurrency_options
    assert limit
    assert limit.limit == 8
    assert options
    assert options.collision_strategy == "ENQUEUE"
    assert [(each.slug, each.active, each.parameters) for each in deployment.schedules] == [
        ("every-10-minutes", False, {})
    ]


@pytest.fixture
def edited(server: PrefectServer) -> Iterator[None]:
    """What a user changes on the server's pages; it is as it was afterwards."""
    client = server.client
    deployment = client.read_deployment_by_name(LATEST)
    (schedule,) = deployment.schedules
    client.update_deployment_schedule(
        deployment.id, schedule.id, active=True, parameters={"source": "/a", "target": "/b"}
    )
    own = DeploymentScheduleCreate.from_schedule(
        Interval(timedelta(hours=1), parameters={"source": "/c", "target": "/d"})
    )
    (created,) = client.create_deployment_schedules(deployment.id, [own])
    client.request(
        "PATCH", "/v2/concurrency_limits/{id_or_name}", path_params={"id_or_name": RANKS_LIMIT}, json={"limit": 3}
    )
    (automation,) = client.read_automations_by_name(SAVED_AUTOMATION)
    client.pause_automation(automation.id)
    yield
    client.resume_automation(automation.id)
    client.delete_deployment_schedule(deployment.id, created.id)
    client.update_deployment_schedule(deployment.id, schedule.id, active=False, parameters={})


@pytest.mark.usefixtures("edited")
def test_deploying_again_changes_nothing_of_what_a_user_edited(server: PrefectServer) -> None:
    before = _state_of(server)
    done = reshard(server, "deploy")
    assert done.returncode == 0, done.stderr
    assert f"deployment {LATEST}: brought up to date" in done.stdout
    assert "prefect worker start --pool reshard" in done.stdout
    assert _state_of(server) == before


@pytest.fixture
def mistyped(server: PrefectServer) -> Iterator[None]:
    """A schedule that was made with a field that does not exist; the server takes it."""
    client = server.client
    deployment = client.read_deployment_by_name(LATEST)
    wrong = Interval(timedelta(hours=1), parameters={"source": "/a", "target": "/b", "tarjet": "/c"}, slug="nightly")
    (created,) = client.create_deployment_schedules(deployment.id, [DeploymentScheduleCreate.from_schedule(wrong)])
    yield
    client.delete_deployment_schedule(deployment.id, created.id)


@pytest.mark.usefixtures("mistyped")
def test_a_schedule_with_a_mistyped_field_is_reported(server: PrefectServer) -> None:
    done = reshard(server, "deploy")
    assert done.returncode == 0, done.stderr
    assert f"schedule nightly of {LATEST}: its runs fail: Unevaluated properties are not allowed" in done.stdout


def test_an_automation_of_an_older_version_learns_that_runs_wait_for_approval(server: PrefectServer) -> None:
    client = server.client
    (automation,) = client.read_automations_by_name(CRASHED_AUTOMATION)
    assert isinstance(automation.trigger, EventTrigger)
    waiting = {"prefect.flow-run.Suspended", "prefect.flow-run.Paused"}
    older = automation.trigger.model_copy(
        update={"expect": automation.trigger.expect - waiting, "within": timedelta(seconds=200)}
    )
    kept = automation.model_dump(exclude={"id", "trigger"}, exclude_unset=True)
    client.update_automation(automation.id, AutomationCore.model_validate(kept | {"trigger": older}))
    done = reshard(server, "deploy")
    assert f"automation {CRASHED_AUTOMATION}: mended: it took suspended runs for killed ones\n" in done.stdout
    (mended,) = client.read_automations_by_name(CRASHED_AUTOMATION)
    assert isinstance(mended.trigger, EventTrigger)
    assert mended.trigger == older.model_copy(update={"expect": automation.trigger.expect})
    client.update_automation(automation.id, AutomationCore.model_validate(kept | {"trigger": automation.trigger}))


OWN_PARAMETERS = {"source": "{{ event.payload.source }}", "target": "/mine"}


@pytest.fixture
def gone(server: PrefectServer) -> Iterator[UUID]:
    """The id of convert-latest, which a user has deleted; its automation, edited and switched off, is still there."""
    client = server.client
    (automation,) = client.read_automations_by_name(SAVED_AUTOMATION)
    (action,) = automation.actions
    kept = automation.model_dump(exclude={"id", "actions", "enabled"}, exclude_unset=True)
    edited = {"actions": [action.model_copy(update={"parameters": OWN_PARAMETERS})], "enabled": False}
    client.update_automation(automation.id, AutomationCore.model_validate(kept | edited))
    deployment = client.read_deployment_by_name(LATEST)
    client.delete_deployment(deployment.id)
    yield deployment.id
    for left in client.read_automations_by_name(SAVED_AUTOMATION):
        client.delete_automation(left.id)
    assert reshard(server, "deploy").returncode == 0


def test_the_event_starts_nothing_once_a_deployment_was_deleted_and_made_again(
    server: PrefectServer, gone: UUID
) -> None:
    client = server.client
    done = reshard(server, "deploy")
    assert done.returncode == 0, done.stderr
    assert f"automation {SAVED_AUTOMATION}: mended: it started a deployment that is gone\n" in done.stdout
    made = client.read_deployment_by_name(LATEST).id
    assert made != gone
    (automation,) = client.read_automations_by_name(SAVED_AUTOMATION)
    (action,) = automation.actions
    assert isinstance(action, RunDeployment)
    assert (automation.enabled, action.deployment_id, action.parameters) == (False, made, OWN_PARAMETERS)
    assert f"automation {SAVED_AUTOMATION}: is there already, left as it is\n" in reshard(server, "deploy").stdout

    client.resume_automation(automation.id)
    runs = until(lambda: _runs_after_an_event(server, made), "no run")
    for run in runs:
        client.delete_flow_run(run.id)
    assert {(run.parameters["source"], run.parameters["target"]) for run in runs} == {("/saved", "/mine")}


def _runs_after_an_event(server: PrefectServer, deployment: UUID) -> list[FlowRun]:
    """Sends the event; the deployment's runs some seconds later, at once when there are any.

    An automation that was just switched on misses events for a moment: the server takes it up after it has answered.
    """
    event = {
        "event": "reshard.checkpoint.saved",
        "resource": {"prefect.resource.id": "training.llama"},
        "payload": {"source": "/saved"},
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
    }
    server.client.request("POST", "/events", json=[event])
    ours = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
    for _ in range(50):
        time.sleep(0.1)
        if runs := server.client.read_flow_runs(deployment_filter=ours, limit=10):
            return runs
    return []


def _state_of(server: PrefectServer) -> dict[str, Any]:
    client = server.client
    deployments = {name: client.read_deployment_by_name(name) for name in sorted(NAMES)}
    return {
        name: deployment.model_dump(mode="json", exclude={"updated", "updated_by", "status", "schedules"})
        | {"schedules": [schedule.model_dump(exclude={"updated"}) for schedule in deployment.schedules]}
        for name, deployment in deployments.items()
    } | {
        "limit": client.read_global_concurrency_limit_by_name(RANKS_LIMIT).limit,
        "automations": [
            (automation.id, automation.enabled)
            for name in (CRASHED_AUTOMATION, SAVED_AUTOMATION)
            for automation in client.read_automations_by_name(name)
        ],
    }


@pytest.mark.parametrize("command", ["deploy", "serve"])
def test_no_server_is_configured(bare_server: PrefectServer, command: str) -> None:
    done = reshard(bare_server, command, PREFECT_API_URL="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reshard: error: no Prefect server is configured. Set PREFECT_API_URL=")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["deploy", "serve"])
def test_a_server_that_does_not_answer(bare_server: PrefectServer, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = reshard(bare_server, command, PREFECT_API_URL=f"http://127.0.0.1:{port}/api")
    assert (done.returncode, done.stdout) == (3, "")
    server = f"the Prefect server at http://127.0.0.1:{port}/api (PREFECT_API_URL in the environment)"
    assert f"{server} does not answer: " in done.stderr
    assert done.stderr.count("\n") == 1
