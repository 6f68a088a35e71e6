"""Runs of the deployments, as they are started from the server's pages, and what is seen of them there."""

import logging
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import Log
from prefect.exceptions import PrefectHTTPStatusError

from demo.resilience import AFTER, BEFORE
from demo.training import train, write_job_strategy
from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import ConversionRequest
from tests.support.deployed import CONVERT, Demo, outcomes_of
from tests.support.patience import until
from tests.support.prefect_server import (
    PREFECT,
    PrefectServer,
    Worker,
    artifacts_of,
    await_run,
    logs_of,
    retry_run,
    start_run,
)
from tests.support.training import set_age

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("worker")
def test_a_run_converts_and_says_so(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run_id = start_run(server, CONVERT, demo.parameters(target))
    ended = await_run(server, run_id, "Completed")
    assert "target" in ended.name
    assert ended.state
    assert re.match(r"Converted: 8 → 4 ranks\. 12\.\d MiB written in ", str(ended.state.message))
    assert run(["verify", str(target)]) == 0
    assert outcomes_of(server, run_id) == {"written": 4}
    assert "every byte was read back" in artifacts_of(server, run_id)["conversion-summary"]
    _check_quiet(server, run_id)


@pytest.mark.parametrize(
    ("deployment", "given"),
    [
        (CONVERT, """resources={"memory_limit": "64MiB"}"""),
        ("convert-checkpoint/convert-expert", "memory_limit=64MiB"),
    ],
)
@pytest.mark.usefixtures("worker")
def test_a_shell_gives_fields_in_their_group_or_by_name(
    server: PrefectServer, demo: Demo, tmp_path: Path, deployment: str, given: str
) -> None:
    places = [f"{name}={value}" for name, value in demo.parameters(tmp_path / "target").items()]
    options = [part for each in (*places, given) for part in ("--param", each)]
    done = subprocess.run(
        [*PREFECT, "deployment", "run", deployment, "--watch", *options],
        env=server.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(["verify", str(tmp_path / "target")]) == 0


@pytest.mark.usefixtures("worker")
def test_a_program_gives_fields_by_name(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    parameters = demo.parameters(tmp_path / "target", memory_limit="1MiB")
    ended = await_run(server, start_run(server, CONVERT, parameters), "Failed")
    assert ended.state
    assert ended.state.message == "Memory limit '1MiB': must be at least 16MiB"


@pytest.mark.usefixtures("worker")
def test_advice_is_in_the_words_of_the_form(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    target, source = tmp_path / "target", tmp_path / "source"
    convert(ConversionRequest.model_validate(demo.parameters(target)))
    shutil.copytree(demo.directory / "checkpoint", source)
    shutil.rmtree(source / "rank_3")
    failures = {
        "or set 'Overwrite' to replace it": demo.parameters(target, select="weights-only"),
        "'Encrypted and damaged sources: Recover' would succeed": demo.parameters(tmp_path / "m", source=str(source)),
    }
    for advice, parameters in failures.items():
        run_id = start_run(server, CONVERT, parameters)
        ended = await_run(server, run_id, "Failed")
        assert ended.state
        assert advice in str(ended.state.message)
        page = artifacts_of(server, run_id)["conversion-summary"]
        assert advice in page
        assert "--" not in page
        assert "start a new run: 'Copy to new run', in the menu ⋮, keeps the other fields" in page


@pytest.mark.usefixtures("worker")
def test_a_failed_run_tells_why_and_can_be_retried(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    strategy = tmp_path / "strategy"
    run_id = start_run(server, CONVERT, demo.parameters(tmp_path / "target", source_strategy=str(strategy)))
    ended = await_run(server, run_id, "Failed")
    message = f"{strategy}: cannot read the strategy: no such file or directory"
    assert ended.state
    assert ended.state.message == message
    logs = until(lambda: [log for log in logs_of(server, run_id) if message in log.message], "no log")
    assert not [log.message for log in logs_of(server, run_id) if "Traceback" in log.message]
    assert any(log.level == logging.ERROR for log in logs)
    shutil.copytree(demo.directory / "strategy", strategy)
    retry_run(server, run_id)
    await_run(server, run_id, "Completed")


def _check_quiet(server: PrefectServer, run_id: UUID) -> None:
    """The log has a line for each rank and phase, and of Prefect's own hardly any."""
    wanted = {(rank, phase) for rank in range(4) for phase in ("written", "checked")}

    def all_logged() -> list[Log]:
        logs = logs_of(server, run_id)
        found = [re.search(r"Completed\('rank (\d): (.*)'", log.message) for log in logs]
        there = {(int(each[1]), "checked" if "read back" in each[2] else "written") for each in found if each}
        return logs if there == wanted else []

    logs = until(all_logged, "not a line for each rank and phase")
    assert not [log.message for log in logs if log.level > logging.INFO]
    assert len(logs) < 24, [log.message for log in logs]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"workers": -1}, "workers"), ({"format": "pickle"}, "format"), ({"check_crc": "perhaps"}, "check_crc")],
)
def test_wrong_parameters_are_refused_by_name(
    server: PrefectServer, demo: Demo, tmp_path: Path, wrong: dict[str, object], named: str
) -> None:
    with pytest.raises(PrefectHTTPStatusError, match=f"field '{named}'"):
        start_run(server, CONVERT, demo.parameters(tmp_path / "target", **wrong))


@pytest.mark.parametrize("deployment", [CONVERT, "convert-checkpoint/convert-with-approval"])
def test_a_run_is_not_even_made_for_a_mistyped_field(
    server: PrefectServer, demo: Demo, tmp_path: Path, deployment: str
) -> None:
    with pytest.raises(PrefectHTTPStatusError, match="'tarjet' was unexpected"):
        start_run(server, deployment, demo.parameters(tmp_path / "target") | {"tarjet": str(tmp_path / "other")})


@pytest.mark.parametrize(
    ("deployment", "field"), [(CONVERT, "target"), ("verify-checkpoint/verify", "target"), (CONVERT, "source_storage")]
)
def test_a_run_is_not_even_made_for_a_relative_path(
    server: PrefectServer, demo: Demo, tmp_path: Path, deployment: str, field: str
) -> None:
    relative = "file:out" if "storage" in field else "out"
    right = demo.parameters(tmp_path / "target") if deployment == CONVERT else {"target": str(tmp_path)}
    with pytest.raises(PrefectHTTPStatusError, match=f"field '{field}'"):
        start_run(server, deployment, right | {field: relative})


@pytest.mark.usefixtures("worker")
def test_a_scheduled_run_with_a_relative_target_fails_at_once_and_names_the_field(
    server: PrefectServer, demo: Demo, tmp_path: Path
) -> None:
    deployment = server.client.read_deployment_by_name(CONVERT)
    # parameters of schedules are held against no schema
    server.client.update_deployment(deployment.id, DeploymentUpdate(enforce_parameter_schema=False))
    try:
        run_id = start_run(server, CONVERT, demo.parameters(tmp_path / "target") | {"target": "out"})
    finally:
        server.client.update_deployment(deployment.id, DeploymentUpdate(enforce_parameter_schema=True))
    ended = await_run(server, run_id, "Failed")
    assert ended.state
    assert str(ended.state.message).startswith(
        "Target 'out': a relative path, but a deployed run works in a temporary directory"
    )


def test_what_is_required_cannot_be_left_out(server: PrefectServer) -> None:
    with pytest.raises(PrefectHTTPStatusError, match="target"):
        start_run(server, CONVERT, {"source": "/data"})


def test_training_saying_that_a_checkpoint_was_saved_starts_a_run(
    server: PrefectServer, worker: Worker, demo: Demo, tmp_path: Path
) -> None:
    found = _run_after_saving(server, demo.parameters(tmp_path / "target"))
    await_run(server, found, "Completed")
    assert run(["verify", str(tmp_path / "target" / "3_1200")]) == 0


def test_a_training_goes_on_from_what_its_event_converted(
    server: PrefectServer, worker: Worker, tmp_path: Path
) -> None:
    strategies = {}
    for name, job in (("source_strategy", BEFORE), ("target_strategy", AFTER)):
        write_job_strategy(job, tmp_path / f"{name}.ckpt")
        strategies[name] = str(tmp_path / f"{name}.ckpt")
    train(BEFORE, tmp_path / "training", 20)
    for path in (tmp_path / "training").glob("rank_*/*.ckpt"):
        set_age(path, 100)  # nobody has to wait for them to settle
    said: dict[str, object] = {
        "source": str(tmp_path / "training"),
        "target": str(tmp_path / "converted"),
        **strategies,
    }
    await_run(server, _run_after_saving(server, said), "Completed")
    train(AFTER, tmp_path / "resumed", 30, start=tmp_path / "converted" / "1_20")
    train(BEFORE, tmp_path / "undisturbed", 30)
    sides = ("--strategy-a", strategies["source_strategy"], "--strategy-b", strategies["target_strategy"])
    assert run(["diff", str(tmp_path / "undisturbed"), str(tmp_path / "resumed"), *sides]) == 0


def _run_after_saving(server: PrefectServer, said: dict[str, object]) -> UUID:
    """Says that a checkpoint was saved, as a training script does that has no Prefect; the run that this starts."""
    event = {
        "event": "reshard.checkpoint.saved",
        "resource": {"prefect.resource.id": "training.llama"},
        "payload": said,
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
    }
    server.client.request("POST", "/events", json=[event])
    deployment = server.client.read_deployment_by_name("convert-latest-checkpoint/convert-latest")
    ours = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))

    def runs() -> list[UUID]:
        found = server.client.read_flow_runs(flow_run_filter=ours, limit=50)
        return [each.id for each in found if each.parameters.get("target") == said["target"]]

    [started] = until(runs, "no run")
    parameters = server.client.read_flow_run(started).parameters
    assert {name: parameters[name] for name in said} == said
    return started
