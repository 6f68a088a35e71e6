"""The conversion that asks, as a program and a worker call it; real workers are in tests/deployments."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, Failed

from reshard import verify
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import ConversionError, InputError
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.target.claim import leases_of
from reshard.flows import approval
from reshard.flows.convert_with_approval import convert_with_approval
from tests.support.checkpoints import case
from tests.support.signing import kept, new_key, private_pem

REPLACED = "**will be replaced**"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Keys and texts of the questions; the answer is to convert."""
    questions: list[tuple[str, str]] = []

    def ask(state: State[Any], question: str) -> approval.Approval:
        questions.append((str(state.state_details.pause_key), question))
        return approval.Approval(decision=approval.Decision.CONVERT, comment="")

    monkeypatch.setattr(approval, "_suspended", ask)
    monkeypatch.setattr(approval, "publish_plan", lambda *_: None)
    monkeypatch.setattr(approval, "label_decision", lambda *_: None)
    monkeypatch.setattr(approval, "_end_heartbeat", lambda: None)
    return questions


def request_for(target: Path, **options: Any) -> ApprovedConversionRequest:
    return ApprovedConversionRequest(**case(7009).request(target).model_dump() | options)


def test_a_program_is_told_that_a_worker_has_to_start_the_run_again(tmp_path: Path) -> None:
    fields = case(7009).request(tmp_path / "out").model_dump()
    with pytest.raises(InputError, match="start it from the deployment convert-checkpoint/convert-with-approval"):
        convert_with_approval(ApprovedConversionRequest(**fields))
    assert not list(tmp_path.iterdir())


def test_the_question_tells_of_any_checkpoint_that_would_be_replaced(
    tmp_path: Path, asked: list[tuple[str, str]]
) -> None:
    target = tmp_path / "out"
    request = request_for(target, overwrite=True)
    plan = make_plan(request)
    approval.check_approved(request, plan)
    convert(case(7009).request(target, format="safetensors"))
    approval.check_approved(request, plan)
    manifest = target / ".reshard" / "manifest.json"
    manifest.write_text("damaged")
    approval.check_approved(request, plan)
    shutil.rmtree(target / ".reshard")  # as if MindSpore had written it
    approval.check_approved(request, plan)
    assert [REPLACED in text for _, text in asked] == [False, True, True, True]
    assert len({key for key, _ in asked[:3]}) == 3


def test_files_of_the_same_plan_are_not_replaced(tmp_path: Path, asked: list[tuple[str, str]]) -> None:
    target = tmp_path / "out"
    request = request_for(target, overwrite=True)
    convert(request.conversion())
    (target / ".reshard" / "manifest.json").unlink()  # as while it is mended
    approval.check_approved(request, make_plan(request))
    assert [REPLACED in text for _, text in asked] == [False]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setattr(approval, "_UNDER_WAY_SECONDS", 0.0)
    with get_client(sync_client=True) as client:
        yield client


def deployed_run(client: SyncPrefectClient, request: ApprovedConversionRequest) -> FlowRun:
    """A run that a worker is to carry out: here `carry_out` is the worker."""
    deployed = client.create_deployment(
        client.create_flow(convert_with_approval), f"approval of {Path(request.target).parent.name}"
    )
    return client.create_flow_run_from_deployment(deployed, parameters={"request": request.model_dump(mode="json")})


def carry_out(client: SyncPrefectClient, run: FlowRun) -> State[Any]:
    with suppress(Pause):
        run_flow(convert_with_approval, client.read_flow_run(run.id), parameters=run.parameters, return_type="state")
    state = client.read_flow_run(run.id).state
    assert state
    return state


def expire(client: SyncPrefectClient, run: FlowRun) -> None:
    """What the server does when nobody decides in time."""
    client.set_flow_run_state(run.id, Failed(message="The flow was paused and never resumed."), force=True)


def retry(client: SyncPrefectClient, run: FlowRun) -> None:
    """What the UI's button Retry does."""
    assert client.set_flow_run_state(run.id, AwaitingRetry()).status is SetStateStatus.ACCEPT


def decide(client: SyncPrefectClient, run: FlowRun, decision: str) -> None:
    assert client.resume_flow_run(run.id, run_input={"decision": decision}).status is SetStateStatus.ACCEPT


def test_what_was_approved_is_signed(tmp_path: Path, client: SyncPrefectClient) -> None:
    key = kept(tmp_path / "key.pem", private_pem(new_key()))
    run = deployed_run(client, request_for(tmp_path / "out", sign=key))
    assert carry_out(client, run).name == "Suspended"
    assert not (tmp_path / "out").exists()
    decide(client, run, "convert")
    assert carry_out(client, run).is_completed()
    assert (tmp_path / "out/model.sig").exists()


def test_a_question_that_the_server_knows_already_is_refused(
    tmp_path: Path, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = deployed_run(client, request_for(tmp_path / "out"))
    assert carry_out(client, run).name == "Suspended"
    decide(client, run, "convert")
    monkeypatch.setattr(approval, "_inputs", list)
    monkeypatch.setattr(approval, "_pause_keys", set)
    ended = carry_out(client, run)
    assert ended.is_failed()
    assert ended.message == "the server does not suspend the run, which is Running: retry it"
    assert not (tmp_path / "out").exists()


def test_a_run_that_the_server_does_not_suspend_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.flows.convert_with_approval.check_deployed", lambda: None)
    with pytest.raises(ConversionError, match="the server does not suspend the run: .*without a deployment"):
        convert_with_approval(request_for(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_each_retry_asks_again_while_nobody_decides_although_the_earlier_questions_are_kept(
    tmp_path: Path, client: SyncPrefectClient
) -> None:
    run = deployed_run(client, request_for(tmp_path / "out"))
    questions = set()
    for _ in range(3):
        state = carry_out(client, run)
        assert state.name == "Suspended", state.message
        assert state.state_details.run_input_keyset
        questions.add(state.state_details.run_input_keyset["schema"])
        expire(client, run)
        retry(client, run)
    carry_out(client, run)
    decide(client, run, "convert")
    assert carry_out(client, run).is_completed()
    assert len(questions) == 3
    texts = client.filter_flow_run_input(run.id, "suspended-", limit=100, exclude_keys=set())
    assert not [text.key for text in texts if "changed since you were last asked" in text.value]
    assert not verify(tmp_path / "out").problems


def test_what_was_approved_and_failed_goes_on_after_a_retry_without_another_question(
    tmp_path: Path, client: SyncPrefectClient
) -> None:
    request = request_for(tmp_path / "out")
    run = deployed_run(client, request)
    assert carry_out(client, run).name == "Suspended"
    decide(client, run, "convert")
    with held_lease(leases_of(parse_url(request.target)), new_holder([0])):
        assert carry_out(client, run).is_failed()
    retry(client, run)
    state = carry_out(client, run)
    assert state.is_completed(), state.message
    assert not verify(tmp_path / "out").problems


def test_a_refusal_holds_after_a_retry(tmp_path: Path, client: SyncPrefectClient) -> None:
    run = deployed_run(client, request_for(tmp_path / "out"))
    carry_out(client, run)
    decide(client, run, "refuse")
    assert carry_out(client, run).is_cancelled()
    retry(client, run)
    assert carry_out(client, run).is_cancelled()
    assert not list(tmp_path.iterdir())
