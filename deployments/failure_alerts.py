"""Alerts that a failed run sends by itself, by the notification block of the automation `reshard: alerts`.

The server may lose an event before an automation sees it: with SQLite, a busy server drops it after a few tries. So the
automation only tells of what no run can tell by itself (`alerts`), and nobody is told of a failure twice.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from prefect import Flow, get_client
from prefect.blocks.core import Block
from prefect.client.schemas.objects import FlowRun, State
from prefect.events.actions import SendNotification
from prefect.logging import get_run_logger
from prefect.runtime import deployment
from prefect.utilities.urls import url_for

from reshard.core.runtime.secrets import scrubbed
from reshard.core.runtime.wording import printable_lines
from reshard.deployments.alerts import ALERTS_AUTOMATION

_PAUSES_SECONDS = (1.0, 5.0, 0.0)
"""After each attempt to notify."""


def alert_of_failure(flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
    """Send the alert of a deployed run that has failed, if alerts are on; a hook of deployed flows."""
    if run.deployment_id is None:
        return
    subject = f"{state.name}: {run.name}"
    page = url_for(run) or ""
    body = f"{run.name} ({deployment.name}): {state.name}\n\n{state.message or ''}\n\n{page}"
    try:
        for block in _blocks_to_notify():
            _notify(block, subject, body)
    except Exception as error:  # of any block, by any library; the run has ended
        message = printable_lines(scrubbed(f"{type(error).__name__}: {error}"))
        get_run_logger().warning("the alert of this failure could not be sent: %s", message)


def _blocks_to_notify() -> Iterator[UUID]:
    """The blocks of the alerts' automation; none if it is switched off."""
    with get_client(sync_client=True) as client:
        for automation in client.read_automations_by_name(ALERTS_AUTOMATION):
            for action in automation.actions if automation.enabled else ():
                if isinstance(action, SendNotification):
                    yield action.block_document_id


def _notify(block_id: UUID, subject: str, body: str) -> None:
    block: Any = Block.load_from_ref(block_id)
    for pause_seconds in _PAUSES_SECONDS:
        try:
            with block.raise_on_failure():
                block.notify(body, subject)
            return
        except Exception:
            if not pause_seconds:
                raise
            time.sleep(pause_seconds)
