"""The history of a server whose worker has converted: by the command, and on the page that a deployment writes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.schedules import IntervalSchedule

from tests.deployments.test_approval import ask, decide
from tests.support.deployed import CONVERT, Demo, reshard, start_slow_run
from tests.support.patience import until
from tests.support.prefect_server import PrefectServer, artifacts_of, await_run, cancel_run, start_run
from tests.support.s3_proxy import S3Proxy

pytestmark = pytest.mark.slow

HISTORY = "report-history/history"
LATEST = "convert-latest-checkpoint/convert-latest"


def entries(server: PrefectServer, target: Path, *options: str) -> list[dict[str, Any]]:
    shown = reshard(server, "history", "--json", "--target", str(target), *options)
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["entries"]
    return found


@pytest.mark.usefixtures("worker")
def test_a_run_that_somebody_started_is_told_with_its_deployment(
    server: PrefectServer, demo: Demo, tmp_path: Path
) -> None:
    run_id = start_run(server, CONVERT, demo.parameters(tmp_path / "target"))
    await_run(server, run_id, "Completed")
    [entry] = entries(server, tmp_path / "target")
    assert (entry["state"], entry["deployment"], entry["flow_run_id"]) == ("committed", "convert", str(run_id))
    assert entry["started_by"] == "unknown"  # Prefect records no user
    assert "@" in entry["ran_as"]
    assert entry["cost_gb_hours"] > 0
    assert entry["memory_basis"] == "peak"


@pytest.mark.usefixtures("worker")
def test_answers_are_told_with_their_comments(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    approved = ask(server, demo, tmp_path / "approved")
    [entry] = entries(server, tmp_path / "approved")
    assert (entry["state"], entry["reason"], entry["approval"]) == ("waiting", "for approval", None)
    decide(server, approved, decision="convert", comment="Ann, for the nightly job")
    await_run(server, approved, "Completed")
    [entry] = entries(server, tmp_path / "approved")
    assert (entry["state"], entry["approval"]) == ("committed", "approved: Ann, for the nightly job")
    refused = ask(server, demo, tmp_path / "refused")
    decide(server, refused, decision="refuse", comment="the wrong step")
    await_run(server, refused, "Cancelled")
    [entry] = entries(server, tmp_path / "refused", "--state", "refused")
    assert (entry["approval"], entry["written_bytes"]) == ("refused: the wrong step", None)


@pytest.mark.usefixtures("worker")
def test_what_an_event_started_is_told_to_come_from_its_automation(
    server: PrefectServer, demo: Demo, tmp_path: Path
) -> None:
    event = {
        "event": "reshard.checkpoint.saved",
        "resource": {"prefect.resource.id": "training.llama"},
        "payload": demo.parameters(tmp_path / "target"),
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
    }
    server.client.request("POST", "/events", json=[event])
    target = tmp_path / "target" / "3_1200"
    [entry] = until(lambda: entries(server, target, "--state", "committed"), "it is not converted")
    assert entry["started_by"] == "automation reshard: a checkpoint was saved"
    assert entry["deployment"] == "convert-latest"


@pytest.mark.usefixtures("worker")
def test_a_run_that_is_cancelled_is_told(
    server: PrefectServer, demo: Demo, tmp_path: Path, slow_store: S3Proxy
) -> None:
    run_id = start_slow_run(server, demo, tmp_path / "target")
    slow_store.latency_seconds = 5.0  # so that it is still running when its history is read
    [entry] = entries(server, tmp_path / "target")
    assert (entry["state"], entry["memory_basis"]) == ("running", "limit")
    assert "@" in entry["ran_as"]
    cancel_run(server, run_id)
    await_run(server, run_id, "Cancelled")
    [entry] = entries(server, tmp_path / "target")
    assert (entry["state"], entry["written_bytes"]) == ("cancelled", None)


@pytest.fixture
def paused(server: PrefectServer) -> Iterator[None]:
    """No worker takes any run."""
    server.client.request("PATCH", "/work_pools/{name}", path_params={"name": "reshard"}, json={"is_paused": True})
    yield
    server.client.request("PATCH", "/work_pools/{name}", path_params={"name": "reshard"}, json={"is_paused": False})


@pytest.mark.usefixtures("paused")
def test_a_run_that_no_worker_takes_is_queued(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    run_id = start_run(server, CONVERT, demo.parameters(tmp_path / "target"))
    [entry] = entries(server, tmp_path / "target")
    assert (entry["state"], entry["begun"], entry["seconds"]) == ("queued", None, None)
    assert entry["queued"]
    cancel_run(server, run_id)


@pytest.mark.usefixtures("worker")
def test_a_deployment_writes_the_page(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    converted = start_run(server, CONVERT, demo.parameters(tmp_path / "target"))
    await_run(server, converted, "Completed")
    run_id = start_run(server, HISTORY, {"days": 2})
    assert await_run(server, run_id, "Completed").name == "history of 2 days"
    page = artifacts_of(server, run_id)["reshard-history"]
    [row] = [line for line in page.splitlines() if f"/runs/flow-run/{converted}" in line]
    assert "| committed |" in row
    assert "| 8 → 4 |" in row


def test_it_is_written_every_hour(server: PrefectServer) -> None:
    [schedule] = server.client.read_deployment_by_name(HISTORY).schedules
    assert (schedule.slug, schedule.active) == ("every-hour", True)
    assert isinstance(schedule.schedule, IntervalSchedule)
    assert schedule.schedule.interval.total_seconds() == 3600


def test_a_table_of_a_server(server: PrefectServer) -> None:
    shown = reshard(server, "history", "--since", "1h")
    assert shown.returncode == 0, shown.stderr
    assert "conversion" in shown.stdout.splitlines()[-1]
    by_option = reshard(
        server, "history", "--server", server.api_url, "--json", PREFECT_API_URL="http://127.0.0.1:9/api"
    )
    assert by_option.returncode == 0, by_option.stderr
