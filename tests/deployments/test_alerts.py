"""Alerts: `reshard deploy --notify`, and what a webhook gets of a run that fails."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.events import EventTrigger
from prefect.events.actions import SendNotification
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import SecretStr

from reshard.deployments.alerts import ALERTS_AUTOMATION, EXPIRED_AUTOMATION, alerts_automation, find_block
from tests.support.deployed import Demo, reshard
from tests.support.patience import until
from tests.support.prefect_server import PrefectServer, await_run, start_run

pytestmark = pytest.mark.slow

_TAKEN_UP_SECONDS = 5
"""An automation misses events for a moment: the server takes it up after it has answered."""


class Receiver(HTTPServer):
    """A webhook on this machine; keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, daemon=True)
        thread.start()
        yield receiver
        receiver.shutdown()


@pytest.fixture
def block(server: PrefectServer, receiver: Receiver) -> Iterator[str]:
    """A notification block on the server; there are no alerts afterwards."""
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        CustomWebhookNotificationBlock(
            name="ops",
            url=f"http://127.0.0.1:{receiver.server_port}/hook",
            json_data={"title": "{{subject}}", "text": "{{body}}"},
            headers=None,
            cookies=None,
        ).save("ops", overwrite=True)
        Secret(value=SecretStr("x")).save("quiet", overwrite=True)
    yield "custom-webhook/ops"
    for name in (ALERTS_AUTOMATION, EXPIRED_AUTOMATION):
        for automation in server.client.read_automations_by_name(name):
            server.client.delete_automation(automation.id)


@pytest.mark.usefixtures("worker")
def test_somebody_is_told_once_of_a_run_that_fails(
    server: PrefectServer, block: str, receiver: Receiver, demo: Demo, tmp_path: Path
) -> None:
    assert (
        f"automation {ALERTS_AUTOMATION}: not made: whom to notify is named by --notify"
        in reshard(server, "deploy").stdout
    )
    done = reshard(server, "deploy", "--notify", block)
    assert f"automation {ALERTS_AUTOMATION}: made\n" in done.stdout, done.stderr
    [message] = messages_of_a_failure(server, receiver, demo, tmp_path)
    assert message["title"].startswith("Failed: convert latest of")
    assert "(convert-latest): Failed" in message["text"]
    assert f"{tmp_path / 'nowhere'}" in message["text"]
    assert "/runs/flow-run/" in message["text"]


@pytest.mark.usefixtures("worker")
def test_a_receiver_that_is_gone_keeps_no_other_from_being_told_of_a_failure(
    server: PrefectServer, block: str, receiver: Receiver, demo: Demo, tmp_path: Path
) -> None:
    assert reshard(server, "deploy").returncode == 0
    there = find_block(server.client, block)
    made = alerts_automation(["reshard"], there)
    actions = [SendNotification(block_document_id=each, subject="-", body="-") for each in (uuid4(), there)]
    server.client.create_automation(made.model_copy(update={"actions": actions}))
    assert len(messages_of_a_failure(server, receiver, demo, tmp_path)) == 1


@pytest.mark.usefixtures("worker")
def test_an_older_automation_does_not_tell_of_a_failure_again(
    server: PrefectServer, block: str, receiver: Receiver, demo: Demo, tmp_path: Path
) -> None:
    made = alerts_automation(["reshard"], find_block(server.client, block))
    assert isinstance(made.trigger, EventTrigger)
    everything = made.trigger.model_copy(update={"expect": {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}})
    server.client.create_automation(made.model_copy(update={"trigger": everything}))
    threading.Event().wait(_TAKEN_UP_SECONDS)
    assert len(messages_of_a_failure(server, receiver, demo, tmp_path)) == 1, "before anybody deploys"
    receiver.received.clear()
    done = reshard(server, "deploy")
    assert f"automation {ALERTS_AUTOMATION}: mended: runs that fail notify by themselves; it notifies by {block}\n" in (
        done.stdout
    )
    assert f"automation {ALERTS_AUTOMATION}: is there already" in reshard(server, "deploy").stdout
    [there] = server.client.read_automations_by_name(ALERTS_AUTOMATION)
    threading.Event().wait(_TAKEN_UP_SECONDS)
    assert len(messages_of_a_failure(server, receiver, demo, tmp_path)) == 1
    server.client.pause_automation(there.id)
    receiver.received.clear()
    assert messages_of_a_failure(server, receiver, demo, tmp_path) == []


@pytest.mark.usefixtures("worker")
def test_somebody_is_told_of_an_approval_that_nobody_gave_in_time(
    server: PrefectServer, block: str, receiver: Receiver, demo: Demo, tmp_path: Path
) -> None:
    assert reshard(server, "deploy", "--notify", block).returncode == 0
    threading.Event().wait(_TAKEN_UP_SECONDS)
    parameters = demo.parameters(tmp_path / "target", approval_seconds=10)
    run_id = start_run(server, "convert-checkpoint/convert-with-approval", parameters)
    await_run(server, run_id, "Failed")
    until(lambda: "Failed" in states_of(receiver.received), "no message of the failure")
    messages = until_some(receiver)
    states = states_of(messages)
    assert states.count("Failed") == 1
    # Prefect delivers an event at least once: a busy server may notify of the suspension twice
    assert {*states} == {"Failed", "Suspended"}
    asked = next(message["text"] for message in messages if message["title"].startswith("Suspended"))
    source, target = demo.directory / "checkpoint", tmp_path / "target"
    assert re.search(rf"Convert {source}, step 3_1200 to {target}\? 8 → 4 ranks, ckpt, 12\.\d MiB to write\.", asked)
    assert re.search(r"Room at the target: 12\.\d MiB needed, .* free\.", asked)
    assert "Answer on the run's page, menu ⋮, Resume: convert or refuse." in asked
    assert re.search(r"The run waits until [\d-]+ \d\d:\d\d UTC, then fails\.", asked)
    assert f"/runs/flow-run/{run_id}" in asked


def messages_of_a_failure(
    server: PrefectServer, receiver: Receiver, demo: Demo, tmp_path: Path
) -> list[dict[str, Any]]:
    parameters = demo.parameters(tmp_path / "target") | {"source": str(tmp_path / "nowhere")}
    await_run(server, start_run(server, "convert-latest-checkpoint/convert-latest", parameters), "Failed")
    return until_some(receiver)


def states_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["title"].partition(":")[0] for message in messages]


def until_some(receiver: Receiver) -> list[dict[str, Any]]:
    """What was received some seconds later."""
    threading.Event().wait(5)
    return list(receiver.received)


def test_alerts_belong_to_the_operator_once_they_are_made(server: PrefectServer, block: str) -> None:
    assert reshard(server, "deploy", "--notify", block).returncode == 0
    (made,) = server.client.read_automations_by_name(ALERTS_AUTOMATION)
    server.client.pause_automation(made.id)
    for arguments in (("deploy",), ("deploy", "--notify", block)):
        done = reshard(server, *arguments)
        left = f"automation {ALERTS_AUTOMATION}: is there already, left as it is; it notifies by {block}\n"
        assert left in done.stdout
    (kept,) = server.client.read_automations_by_name(ALERTS_AUTOMATION)
    assert (kept.id, kept.enabled) == (made.id, False)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("slack-webhook/nobody", "the server has no such block; `prefect block ls` lists them as TYPE/NAME"),
        ("ops", "the server has no such block"),
        ("secret/quiet", "is not a notification block: name a Slack Webhook"),
    ],
)
@pytest.mark.usefixtures("block")
def test_a_block_that_notifies_nobody_is_refused_before_anything_is_made(
    server: PrefectServer, name: str, why: str
) -> None:
    done = reshard(server, "deploy", "--notify", name)
    assert (done.returncode, "automation" in done.stdout) == (2, False)
    assert f"--notify {name}: {why}" in done.stderr
