"""Runs the flow in this process: on the server that is configured, or on the one that Prefect brings along."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client, settings
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import TaskRunSort
from prefect.events.worker import EventsWorker

from core.errors import ConversionError
from core.progress import Progress, SilentProgress, reporting_to
from core.report import ConversionReport
from core.request import ConversionRequest
from flows.convert_checkpoint import convert_checkpoint

EMBEDDED_SETTINGS: dict[Any, Any] = {
    # the first start makes a database: 18 s were seen, and Prefect gives up after 20 by default
    settings.PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 90,
    settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
    # what goes wrong in it shows in its answers; its own log would mix with our output
    settings.PREFECT_SERVER_LOGGING_LEVEL: "CRITICAL",
    # it records task runs one by one otherwise, 50 a second, on the processor that the conversion needs
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE: 100,
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE: 10,
    # ending a run waits for it; Prefect cuts this to whole seconds, and with 0 the server never sleeps
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 1,
    # ending a run would wait a second for the thread that tells a server we are alive
    settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
}
"""Settings that make Prefect's embedded server start reliably, and keep it quick and quiet."""

_RECORDING_TIMEOUT_SECONDS = 30.0
_RECORDING_PAUSE_SECONDS = 0.25
_UNFINISHED = TaskRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING])


def run_locally(request: ConversionRequest, progress: Progress | None = None) -> ConversionReport:
    """Runs the flow in this process and returns its report. An embedded server ends with the process.

    Prefect's log lines go to the server only: the console is the caller's.

    Raises:
        InputError: the request or what it names is wrong.
        VerificationError: a written file is not what it was to be.
        ConversionError: it failed all the same, or the Prefect server does not answer.
    """
    progress = progress or SilentProgress()
    _leave_the_console()
    embedded = not settings.PREFECT_API_URL.value()
    if embedded:
        progress.note("starting Prefect's embedded server (the first time it takes up to 20 s)")
    with settings.temporary_settings(EMBEDDED_SETTINGS if embedded else {}), reporting_to(progress), _exit_on_sigterm():
        _check_server()
        try:
            state: State[ConversionReport] = convert_checkpoint(request, return_state=True)
        except httpx.HTTPError as error:
            raise _server_error(error) from error
        if embedded and state.state_details.flow_run_id:
            with suppress(httpx.HTTPError):  # the conversion is what counts
                _await_recording(state.state_details.flow_run_id)
        report: ConversionReport = state.result()
        return report


def _leave_the_console() -> None:
    logging.getLogger("prefect").setLevel(logging.WARNING)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.propagate = False


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Ends the process in order: killed outright, it would leave the embedded server behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_server() -> None:
    """Reaches the server, starting the embedded one if none is configured.

    Raises:
        ConversionError: it does not answer.
    """
    answer: SimpleQueue[Exception | None] = SimpleQueue()
    # in a thread, because the server inherits which signals the thread blocks
    starter = threading.Thread(target=copy_context().run, args=(lambda: answer.put(_reach_server()),), daemon=True)
    starter.start()
    problem = answer.get()
    if problem is not None:
        raise _server_error(problem) from problem


def _reach_server() -> Exception | None:
    # a terminal sends Ctrl-C to all processes; the server has to live on, to be told how the run ended
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with get_client(sync_client=True) as client:
            return client.api_healthcheck()
    except Exception as error:
        return error


def _server_error(problem: Exception) -> ConversionError:
    url = settings.PREFECT_API_URL.value()
    server = f"the Prefect server at {url}" if url else "the embedded Prefect server"
    advice = "Start it, unset PREFECT_API_URL to use the embedded one, or convert" if url else "Convert"
    return ConversionError(f"{server} does not answer: {problem}. {advice} without Prefect: --engine direct")


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
            found = client.read_task_runs(
                flow_run_filter=ours, task_run_filter=unfinished, sort=TaskRunSort.ID_DESC, limit=1
            )
            quiet = 0 if found else quiet + 1
