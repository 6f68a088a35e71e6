"""`reshard serve`: runs without a worker."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.schedules import Interval

from reshard.cli.main import run
from reshard.deployments.described import read_descriptions
from tests.support.deployed import CONVERT, Demo, outcomes_of, reshard, start_slow_run
from tests.support.patience import until
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    await_run,
    logs_of,
    prefect_server,
    retry_run,
    start_run,
)
from tests.support.runs import Files, check_finished, recorded_ranks
from tests.support.s3_proxy import S3Proxy

pytestmark = pytest.mark.slow

LATEST = "convert-latest-checkpoint/convert-latest"
SAVED_AUTOMATION = "reshard: a checkpoint was saved"


@contextmanager
def serving(server: PrefectServer, directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """`reshard serve` in an empty directory, for the time of the block."""
    serve = [sys.executable, "-m", "reshard.cli.main", "serve", "--limit", "2"]
    served = Worker(server, directory, serve, {"PYTHONPATH": ":".join(filter(None, sys.path)), **(settings or {})})
    try:
        until(lambda: "serving to" in served.log.read_text(), f"it does not serve: {served.log}")
        yield served
    finally:
        served.kill()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server without a work pool of reshard."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


def test_serve_carries_out_runs_and_keeps_what_a_user_changed(
    own_server: PrefectServer, demo: Demo, tmp_path: Path
) -> None:
    client = own_server.client
    with serving(own_server, tmp_path / "first"):
        names = {described.name for described in read_descriptions()}
        until(lambda: {each.name for each in client.read_deployments()} == names, "no deployments")
        run_id = start_run(own_server, CONVERT, demo.parameters(tmp_path / "target"))
        await_run(own_server, run_id, "Completed")
        (made,) = client.read_automations_by_name(SAVED_AUTOMATION)
    assert run(["verify", str(tmp_path / "target")]) == 0
    assert not any("Traceback" in log.message for log in logs_of(own_server, run_id))
    asking = client.read_deployment_by_name("convert-checkpoint/convert-with-approval")
    assert "resources" in (asking.parameter_openapi_schema or {})["definitions"]  # the form has its groups
    latest = client.read_deployment_by_name(LATEST)
    (action,) = made.actions
    assert isinstance(action, RunDeployment)
    assert (made.enabled, action.deployment_id) == (True, latest.id)

    hourly = DeploymentScheduleCreate.from_schedule(Interval(timedelta(hours=1)))
    client.create_deployment_schedules(client.read_deployment_by_name(CONVERT).id, [hourly])
    edited = action.model_copy(update={"parameters": {"source": "/a", "target": "/b"}})
    kept = made.model_dump(exclude={"id", "actions", "enabled"}, exclude_unset=True)
    changed = AutomationCore.model_validate(kept | {"actions": [edited], "enabled": False})
    client.update_automation(made.id, changed)
    before = client.read_automations_by_name(SAVED_AUTOMATION)
    updated = {name: client.read_deployment_by_name(name).updated for name in (CONVERT, LATEST)}

    def is_updated(name: str) -> bool:
        return client.read_deployment_by_name(name).updated != updated[name]

    with serving(own_server, tmp_path / "second"):
        for name in updated:
            until(partial(is_updated, name), f"{name} is not updated")
    (schedule,) = client.read_deployment_by_name(CONVERT).schedules
    assert (schedule.active, schedule.schedule) == (True, hourly.schedule)
    assert client.read_automations_by_name(SAVED_AUTOMATION) == before
    assert [automation.enabled for automation in before] == [False]


def test_sigterm_ends_it_and_its_run_without_a_traceback(
    own_server: PrefectServer, demo: Demo, slow_store: S3Proxy, wanted: Files, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    with serving(own_server, tmp_path / "served", demo.store.environment) as served:
        run_id = start_slow_run(own_server, demo, target)
        processes = served.flow_processes()
        served.terminate()
        until(lambda: served.ended, "it goes on")
        assert served.exit_code == 0
        until(lambda: not any(process.is_running() for process in processes), "its run goes on")
        shown = served.log.read_text()
        assert "Traceback" not in shown
        assert "Warning" not in shown
        done = recorded_ranks(target)
        slow_store.begin_anew()
        with serving(own_server, tmp_path / "again", demo.store.environment):
            await_run(own_server, run_id, "Crashed")
            retry_run(own_server, run_id)
            await_run(own_server, run_id, "Completed")
        assert outcomes_of(own_server, run_id)["resumed"] >= len(done) > 0
    check_finished(target, wanted, "after it was stopped")


def test_serve_takes_nothing_away_from_workers(server: PrefectServer) -> None:
    done = reshard(server, "serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "convert-checkpoint/convert is deployed to the work pool reshard of this server: start a worker" in done.stderr
    )
    assert server.client.read_deployment_by_name(CONVERT).work_pool_name == "reshard"
