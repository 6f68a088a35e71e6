"""Runs the flow in this process, on the configured Prefect server or an embedded one."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
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

from reshard.core.errors import ConversionError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.progress import Progress, SilentProgress, reporting_to
from reshard.flows.embedded_server import embedded_server_error, is_embedded, start_server

if TYPE_CHECKING:
    from prefect import Flow

    from reshard.core.conversion.report import ConversionReport

    ConversionFlow = Flow[[ConversionRequest], ConversionReport]

_RECORDING_TIMEOUT_SECONDS = 30.0
_RECORDING_PAUSE_SECONDS = 0.1
_UNFINISHED = TaskRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING])


def run_locally(request: ConversionRequest, progress: Progress | None = None) -> "ConversionReport":
    """Run the flow in this process and return its report. An embedded server ends with the process.

    Prefect's log lines go to the server only: the console is the caller's.

    Raises:
        InputError: the request, or a file or storage that it names, is wrong.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure, or the Prefect server does not answer.
    """
    progress = progress or SilentProgress()
    _leave_the_console()
    with reporting_to(progress), _exit_on_sigterm():
        if settings.PREFECT_API_URL.value():
            _check_server()
            return _run(_flow(), request).result()
        progress.note("starting Prefect's embedded server (the first time it takes up to 20 s)")
        server = start_server()
        flow = _flow()
        with server.in_use():
            state = _run(flow, request)
            if state.state_details.flow_run_id:
                with suppress(httpx.HTTPError):  # the conversion is what counts
                    _await_recording(state.state_details.flow_run_id)
            return state.result()


def _flow() -> "ConversionFlow":
    """Import the flow, which takes a second in which a server can start."""
    from reshard.flows.convert_checkpoint import convert_checkpoint

    return convert_checkpoint


def _run(flow: "ConversionFlow", request: ConversionRequest) -> "State[ConversionReport]":
    try:
        state: State[ConversionReport] = flow(request, return_state=True)
    except httpx.HTTPError as error:
        raise _server_error(error) from error
    return state


def _leave_the_console() -> None:
    logging.getLogger("prefect").setLevel(logging.WARNING)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.propagate = False


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """End the process in order: a killed process would leave the embedded server behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_server() -> None:
    """Check that the configured server answers."""
    try:
        with get_client(sync_client=True) as client:
            problem = client.api_healthcheck()
    except Exception as error:
        problem = error
    if problem is not None:
        raise _server_error(problem) from problem


def _server_error(problem: Exception) -> ConversionError:
    if is_embedded():
        return embedded_server_error(problem)
    url = settings.PREFECT_API_URL.value()
    return ConversionError(
        f"the Prefect server at {url} does not answer: {problem}. "
        "Start it, unset PREFECT_API_URL to use the embedded one, or convert without Prefect: --engine direct"
    )


def _await_recording(flow_run_id: UUID) -> None:
    """Wait until the server has recorded the ends of the tasks, which arrive as events a little later.

    It ends with this process, and tasks that are not recorded by then would stay "running" for ever.
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
