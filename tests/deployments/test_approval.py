"""Runs that wait for approval, on a real server with a real worker, answered through its API."""

import shutil
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import PrefectHTTPStatusError

from reshard.cli.main import run
from tests.support.deployed import Demo
from tests.support.patience import until
from tests.support.prefect_server import (
    PrefectServer,
    artifacts_of,
    await_run,
    retry_run,
    start_run,
)

pytestmark = pytest.mark.slow

APPROVAL = "convert-checkpoint/convert-with-approval"


def question_of(server: PrefectServer, run_id: UUID) -> str:
    """What the run's dialog shows; Prefect stores it a moment after the state."""
    state = server.client.read_flow_run(run_id).state
    assert state
    keys = state.state_details.run_input_keyset
    assert keys

    def stored() -> str | None:
        try:
            path = {"id": run_id, "key": keys["description"]}
            return str(server.client.request("GET", "/flow_runs/{id}/input/{key}", path_params=path).json())
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            return None

    return until(stored, "no question", 20)


def ask(server: PrefectServer, demo: Demo, target: Path, **others: object) -> UUID:
    run_id = start_run(server, APPROVAL, demo.parameters(target, **others))
    await_run(server, run_id, "Suspended")
    question_of(server, run_id)
    return run_id


def decide(server: PrefectServer, run_id: UUID, **answer: str) -> None:
    assert server.client.resume_flow_run(run_id, run_input=answer).status is SetStateStatus.ACCEPT


@pytest.mark.usefixtures("worker")
def test_what_is_approved_is_converted_and_nothing_before(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run_id = ask(server, demo, target)
    assert not list(tmp_path.iterdir())
    assert f"to write** into `{target}`: 8 → 4 ranks, ckpt." in question_of(server, run_id)
    assert "# Plan: 8 → 4 ranks" in artifacts_of(server, run_id)["conversion-plan"]
    undecided = server.client.resume_flow_run(run_id, run_input={"comment": "hm"})
    assert undecided.status is SetStateStatus.REJECT
    decide(server, run_id, decision="convert", comment="Ann")
    await_run(server, run_id, "Completed")
    assert run(["verify", str(target)]) == 0


@pytest.mark.usefixtures("worker")
def test_a_refused_plan_ends_as_cancelled_with_the_reason(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    run_id = ask(server, demo, tmp_path / "target")
    decide(server, run_id, decision="refuse", comment="the wrong step")
    ended = await_run(server, run_id, "Cancelled")
    assert ended.state
    assert ended.state.message == "Refused: the wrong step. Nothing was written; to be asked again, start a new run"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("worker")
def test_a_source_that_changes_before_the_answer_is_asked_about_again(
    server: PrefectServer, demo: Demo, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(demo.directory / "checkpoint", source)
    run_id = ask(server, demo, target, source=str(source))
    file = next(source.glob("rank_3/*.ckpt"))
    file.write_bytes(file.read_bytes())  # saved again: the contents may be others
    decide(server, run_id, decision="convert")
    await_run(server, run_id, "Suspended")
    assert "**Source, strategies or target have changed since you were last asked." in question_of(server, run_id)
    assert not target.exists()
    decide(server, run_id, decision="convert")
    await_run(server, run_id, "Completed")
    assert run(["verify", str(target)]) == 0


@pytest.mark.usefixtures("worker")
def test_nobody_decides_in_time_and_a_retry_asks_again(server: PrefectServer, demo: Demo, tmp_path: Path) -> None:
    run_id = ask(server, demo, tmp_path / "target", approval_seconds=10)
    ended = await_run(server, run_id, "Failed")
    assert ended.state
    assert ended.state.message == "The flow was paused and never resumed."
    retry_run(server, run_id)
    await_run(server, run_id, "Suspended")
    question_of(server, run_id)
    decide(server, run_id, decision="refuse")
    await_run(server, run_id, "Cancelled")
    assert not list(tmp_path.iterdir())
