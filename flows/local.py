"""Runs the flow in this process: on the server that is configured, or on the one that Prefect brings along."""

import logging
import time
from typing import Any
from uuid import UUID

from prefect import get_client, settings
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.events.worker import EventsWorker

from core.errors import ConversionError
from core.progress import Progress, reporting_to
from core.report import ConversionReport
from core.request import ConversionRequest
from flows.convert_checkpoint import convert_checkpoint

_EMBEDDED: dict[Any, Any] = {
    # the first start makes a database: 18 s were seen, and Prefect gives up after 20 by default
    settings.PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 90,
    settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
    # what goes wrong in it shows in its answers; its own log would mix with our output
    settings.PREFECT_SERVER_LOGGING_LEVEL: "CRITICAL",
    # it records task runs one by one otherwise, 50 a second, on the processor that the conversion needs
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE: 100,
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE: 100,
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 0.2,
    # ending a run would wait a second for the thread that tells a server we are alive
    settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
}
_RECORDING_TIMEOUT_SECONDS = 30.0
_RECORDING_PAUSE_SECONDS = 0.25
_UNFINISHED = TaskRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING])


def run_locally(request: ConversionRequest, progress: Progress) -> ConversionReport:
    """Runs the flow in this process and returns its report. An embedded server ends with the process.

    Prefect's log lines go to the server only: the console is the caller's.

    Raises:
        InputError: the request or what it names is wrong.
        VerificationError: a written file is not what it was to be.
        ConversionError: it failed all the same, or there is no Prefect server.
    """
    _leave_the_console()
    embedded = not settings.PREFECT_API_URL.value()
    with settings.temporary_settings(_EMBEDDED if embedded else {}), reporting_to(progress):
        _check_server()
        state: State[ConversionReport] = convert_checkpoint(request, return_state=True)
        if embedded and state.state_details.flow_run_id:
            _await_recording(state.state_details.flow_run_id)
        report: ConversionReport = state.result()
        return report


def _leave_the_console() -> None:
    logging.getLogger("prefect").setLevel(logging.WARNING)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _check_server() -> None:
    """Reaches the server, starting the embedded one if none is configured.

    Raises:
        ConversionError: there is none.
    """
    try:
        with get_client(sync_client=True) as client:
            problem = client.api_healthcheck()
    except RuntimeError as error:
        problem = error
    if problem is not None:
        url = settings.PREFECT_API_URL.value()
        raise ConversionError(
            f"{f'the Prefect server at {url}' if url else 'the embedded Prefect server'} does not answer: {problem}. "
            + ("Start it, or unset PREFECT_API_URL; " if url else "")
            + "--engine direct converts without Prefect"
        )


def _await_recording(flow_run_id: UUID) -> None:
    """Waits until the server has taken down how the tasks ended: it learns of it from events, a little later.

    It ends with this process, and what it has not taken down by then would stay "running" for ever.
    """
    EventsWorker.instance().wait_until_empty()
    deadline = time.monotonic() + _RECORDING_TIMEOUT_SECONDS
    ours = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    unfinished = TaskRunFilter(state=TaskRunFilterState(type=_UNFINISHED))
    quiet = 0
    with get_client(sync_client=True) as client:
        # twice in a row: between two tasks there may be none for a moment
        while quiet < 2 and time.monotonic() < deadline:
            time.sleep(_RECORDING_PAUSE_SECONDS)
            quiet = 0 if client.read_task_runs(flow_run_filter=ours, task_run_filter=unfinished, limit=1) else quiet + 1
