"""`reshard serve`: runs without a worker."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.schedules import Interval

from reshard.cli.main import run
from tests.support.deployed import CONVERT, Demo, outcomes_of, reshard, start_slow_run
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    await_run,
    logs_of,
    prefect_server,
    retry_run,
    start_run,
    until,
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
        until(lambda: "serving to" in served.log.read_text(), f"it does not serve: {served.log}", 60)
        yield served
    finally:
        served.kill()


def test_serve_carries_out_runs_and_leaves_schedules_as_they_are(demo: Demo, tmp_path: Path) -> None:
    with prefect_server(tmp_path / "prefect") as server:
        with serving(server, tmp_path / "first"):
            until(lambda: len(server.client.read_deployments(limit=10, offset=0)) == 6, "no deployments", 60)
            run_id = start_run(server, CONVERT, demo.parameters(tmp_path / "target"))
            await_run(server, run_id, "Completed")
        assert run(["verify", str(tmp_path / "target")]) == 0
        assert not any("Traceback" in log.message for log in logs_of(server, run_id))

        before = server.client.read_deployment_by_name(CONVERT)
        hourly = DeploymentScheduleCreate.from_schedule(Interval(timedelta(hours=1)))
        server.client.create_deployment_schedules(before.id, [hourly])
        asking = server.client.read_deployment_by_name("convert-checkpoint/convert-with-approval")
        assert "resources" in (asking.parameter_openapi_schema or {})["definitions"]  # the form has its groups
        with serving(server, tmp_path / "second"):
            until(lambda: server.client.read_deployment_by_name(CONVERT).updated != before.updated, "not updated", 60)
        (schedule,) = server.client.read_deployment_by_name(CONVERT).schedules
        assert (schedule.active, schedule.schedule) == (True, hourly.schedule)


def test_sigterm_ends_it_and_its_run_without_a_traceback(
    demo: Demo, slow_store: S3Proxy, wanted: Files, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    with (
        prefect_server(tmp_path / "prefect") as server,
        serving(server, tmp_path / "served", demo.store.environment) as served,
    ):
        run_id = start_slow_run(server, demo, target)
        processes = served.flow_processes()
        served.terminate()
        until(lambda: served.ended, "it goes on", 60)
        assert served.exit_code == 0
        until(lambda: not any(process.is_running() for process in processes), "its run goes on", 30)
        shown = served.log.read_text()
        assert "Traceback" not in shown
        assert "Warning" not in shown
        done = recorded_ranks(target)
        slow_store.begin_anew()
        with serving(server, tmp_path / "again", demo.store.environment):
            await_run(server, run_id, "Crashed", seconds=30)
            retry_run(server, run_id)
            await_run(server, run_id, "Completed")
        assert outcomes_of(server, run_id)["resumed"] >= len(done) > 0
    check_finished(target, wanted, "after it was stopped")


def test_serving_again_switches_an_automation_on_that_a_user_switched_off(tmp_path: Path) -> None:
    with prefect_server(tmp_path / "prefect") as server:
        client = server.client
        with serving(server, tmp_path / "first"):
            (made,) = client.read_automations_by_name(SAVED_AUTOMATION)
        latest = client.read_deployment_by_name(LATEST)
        (action,) = made.actions
        assert isinstance(action, RunDeployment)
        assert (made.enabled, action.deployment_id) == (True, latest.id)

        edited = action.model_copy(update={"parameters": {"source": "/a", "target": "/b"}})
        kept = made.model_dump(exclude={"id", "actions", "enabled"}, exclude_unset=True)
        changed = AutomationCore.model_validate(kept | {"actions": [edited], "enabled": False})
        client.update_automation(made.id, changed)
        before = client.read_automations_by_name(SAVED_AUTOMATION)
        with serving(server, tmp_path / "second"):
            until(lambda: client.read_deployment_by_name(LATEST).updated != latest.updated, "not updated", 60)
        assert client.read_automations_by_name(SAVED_AUTOMATION) == before
        assert [automation.enabled for automation in before] == [False]


def test_serve_takes_nothing_away_from_workers(server: PrefectServer) -> None:
    done = reshard(server, "serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "convert-checkpoint/convert is deployed to the work pool reshard of this server: start a worker" in done.stderr
    )
    assert server.client.read_deployment_by_name(CONVERT).work_pool_name == "reshard"
