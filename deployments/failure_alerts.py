"""Alerts that a failed run sends by itself, by the notification block of the automation `reshard: alerts`.

The server may lose an event before an automation sees it: with SQLite, a busy server drops it after a few tries. So the
automation alerts only of what no run can report by itself (`alerts`). No failure is reported twice: a run sends nothing
if the automation alerts of its state as well, as automations of older versions do.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect import Flow, get_client
from prefect.blocks.core import Block
from prefect.client.schemas.objects import FlowRun, State
from prefect.events.actions import SendNotification
from prefect.logging import get_run_logger
from prefect.runtime import deployment
from prefect.utilities.urls import url_for

from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed
from reshard.deployments.alerts import ALERTS_AUTOMATION, tells_of

_PAUSES_SECONDS = (1.0, 5.0, 0.0)
"""After each attempt to notify."""


def alert_of_failure(flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
    """Send the alert of a deployed run that has failed, if alerts are on; a hook of deployed flows."""
    if run.deployment_id is None:
        return
    subject = f"{state.name}: {run.name}"
    page = url_for(run) or ""
    body = f"{run.name} ({deployment.name}): {state.name}\n\n{state.message or ''}\n\n{page}"
    with _failures_logged():
        for block in _blocks_to_notify(f"prefect.flow-run.{state.name}"):
            with _failures_logged():  # of one block; the others are still notified
                _notify(block, subject, body)


@contextmanager
def _failures_logged() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of any block, by any library; the run has ended
        message = printable_lines(scrubbed(f"{type(error).__name__}: {error}"))
        get_run_logger().warning("the alert of this failure could not be sent: %s", message)


def _blocks_to_notify(event: str) -> list[UUID]:
    """Return the blocks of the alerts' automation; none if it is switched off, or tells of the event by itself."""
    with get_client(sync_client=True) as client:
        automations = client.read_automations_by_name(ALERTS_AUTOMATION)
    return [
        action.block_document_id
        for automation in automations
        if automation.enabled and not tells_of(automation, event)
        for action in automation.actions
        if isinstance(action, SendNotification)
    ]


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
