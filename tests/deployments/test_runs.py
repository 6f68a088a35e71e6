"""Runs of the deployments, as they are started from the server's pages, and what is seen of them there."""

import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
)
from prefect.exceptions import PrefectHTTPStatusError

from cli.main import run
from tests.deployments.conftest import CONVERT, Demo, outcomes_of
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    artifacts_of,
    await_run,
    logs_of,
    retry_run,
    start_run,
    until,
)

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("worker")
def test_a_run_converts_and_says_so(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run_id = start_run(server, CONVERT, demo.parameters(target))
    ended = await_run(server, run_id, "Completed")
    assert "target" in ended.name
    assert run(["verify", str(target)]) == 0
    assert outcomes_of(server, run_id) == {"written": 4}
    assert "every byte was read back" in artifacts_of(server, run_id)["conversion-summary"]
    _check_quiet(server, run_id)


@pytest.mark.usefixtures("worker")
def test_a_failed_run_tells_why_and_can_be_retried(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    strategy = tmp_path / "strategy"
    run_id = start_run(server, CONVERT, demo.parameters(tmp_path / "target", source_strategy=str(strategy)))
    ended = await_run(server, run_id, "Failed")
    message = f"{strategy}: cannot read the strategy: no such file or directory"
    assert ended.state
    assert ended.state.message == message
    logs = until(lambda: [log for log in logs_of(server, run_id) if message in log.message], "no log", 20)
    assert not [log.message for log in logs_of(server, run_id) if "Traceback" in log.message]
    assert any(log.level == logging.ERROR for log in logs)
    shutil.copytree(demo.directory / "strategy", strategy)
    retry_run(server, run_id)
    await_run(server, run_id, "Completed")


def _check_quiet(server: PrefectServer, run_id: UUID) -> None:
    logs = until(lambda: logs_of(server, run_id), "no logs", 20)
    assert not [log.message for log in logs if log.level > logging.INFO]
    assert len(logs) < 12, [log.message for log in logs]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"workers": -1}, "workers"), ({"format": "pickle"}, "format"), ({"check_crc": "perhaps"}, "check_crc")],
)
def test_wrong_parameters_are_refused_by_name(
    server: PrefectServer, demo: Demo, tmp_path: Path, wrong: dict[str, object], named: str
) -> None:
    with pytest.raises(PrefectHTTPStatusError, match=f"field '{named}'"):
        start_run(server, CONVERT, demo.parameters(tmp_path / "target", **wrong))


def test_what_is_required_cannot_be_left_out(server: PrefectServer) -> None:
    with pytest.raises(PrefectHTTPStatusError, match="target"):
        start_run(server, CONVERT, {"source": "/data"})


def test_training_saying_that_a_checkpoint_was_saved_starts_a_run(
    server: PrefectServer, worker: Worker, demo: Demo, tmp_path: Path
) -> None:
    said = demo.parameters(tmp_path / "target")
    # as a training script does that has no Prefect
    event = {
        "event": "reshard.checkpoint.saved",
        "resource": {"prefect.resource.id": "training.llama"},
        "payload": said,
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
    }
    server.client.request("POST", "/events", json=[event])
    deployment = server.client.read_deployment_by_name("convert-latest-checkpoint/convert-latest")
    ours = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
    (found,) = until(
        lambda: server.client.read_flow_runs(deployment_filter=ours, limit=10, offset=0, sort=None), "no run", 60
    )
    assert {name: found.parameters[name] for name in said} == said
    await_run(server, found.id, "Completed")
    assert run(["verify", str(tmp_path / "target" / "3_1200")]) == 0
