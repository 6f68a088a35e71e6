"""Runs that wait for approval, on a real server with a real worker, answered through its API."""

import re
import shutil
import subprocess
from collections.abc import Iterator
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

    return until(stored, "no question")


def ask(server: PrefectServer, demo: Demo, target: Path, **others: object) -> UUID:
    run_id = start_run(server, APPROVAL, demo.parameters(target, **others))
    waiting = await_run(server, run_id, "Suspended")
    assert waiting.state
    assert str(waiting.state.message).startswith(f"Convert {others.get('source', demo.directory / 'checkpoint')}, step")
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that has room for the demo's conversion, if nothing else is written to it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.usefixtures("worker")
def test_room_that_is_gone_when_the_run_is_approved_ends_it_before_any_byte_is_written(
    server: PrefectServer, demo: Demo, small_disk: Path
) -> None:
    run_id = ask(server, demo, small_disk / "target")
    assert re.search(r"Room at the target: 12\.\d MiB needed, 16\.0 MiB free\.", question_of(server, run_id))
    (small_disk / "other").write_bytes(b"x" * 8 * 2**20)
    decide(server, run_id, decision="convert")
    ended = await_run(server, run_id, "Failed")
    assert ended.state
    assert re.search(r"has no room: 12\.\d MiB are needed, 8\.0 MiB are free\n", str(ended.state.message))
    assert not list(small_disk.rglob("*.ckpt"))
    assert "Free the missing space, then retry" in artifacts_of(server, run_id)["conversion-summary"]
    (small_disk / "other").unlink()
    retry_run(server, run_id)
    await_run(server, run_id, "Completed")
    assert run(["verify", str(small_disk / "target")]) == 0


@pytest.mark.usefixtures("worker")
def test_a_question_for_which_there_is_no_room_says_so(server: PrefectServer, demo: Demo, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(b"x" * 8 * 2**20)
    run_id = ask(server, demo, small_disk / "target")
    assert "MiB are needed, 8.0 MiB are free.** Free some space before you approve" in question_of(server, run_id)
    decide(server, run_id, decision="refuse")
    await_run(server, run_id, "Cancelled")


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
