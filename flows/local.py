"""Runs a flow in this process, on the configured Prefect server or an embedded one."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast, overload
from uuid import UUID

import httpx
from prefect import get_client, settings
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import TaskRunSort
from prefect.events.worker import EventsWorker

from reshard.core.errors import ConversionError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.progress import Progress, SilentProgress, reporting_to
from reshard.flows.embedded_server import embedded_server_error, is_embedded, start_server
from reshard.flows.server_setting import check_server_url, unreachable

if TYPE_CHECKING:
    from prefect import Flow

    from reshard.core.conversion.latest import LatestReport
    from reshard.core.conversion.report import ConversionReport

Request = ConversionRequest | LatestConversionRequest

_RECORDING_TIMEOUT_SECONDS = 30.0
_RECORDING_PAUSE_SECONDS = 0.1
_UNFINISHED = TaskRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING])


@overload
def run_locally(request: ConversionRequest, progress: Progress | None = None) -> "ConversionReport": ...


@overload
def run_locally(request: LatestConversionRequest, progress: Progress | None = None) -> "LatestReport": ...


def run_locally(request: Request, progress: Progress | None = None) -> "ConversionReport | LatestReport":
    """Run the request's flow in this process and return its report. An embedded server ends with the process.

    Prefect's log lines go to the server only: the console is the caller's.

    Raises:
        InputError: the request, or a file or storage that it names, is wrong.
        VerificationError: a written file differs from what should have been written.
        ConversionError: runtime failure, or the Prefect server does not answer.
    """
    progress = progress or SilentProgress()
    with reporting_to(progress), _exit_on_sigterm(), _logs_off_the_console():
        report: ConversionReport | LatestReport = _run_on_a_server(request, progress).result()
    return report


def _run_on_a_server(request: Request, progress: Progress) -> "State[Any]":
    if settings.PREFECT_API_URL.value():
        _check_server()
        return _run(_flow_of(request), request)
    progress.note("starting Prefect's embedded server (the first time it takes up to 20 s)")
    server = start_server()
    flow = _flow_of(request)
    with server.in_use():
        state = _run(flow, request)
        if state.state_details.flow_run_id:
            with suppress(httpx.HTTPError):  # the conversion is what counts
                _await_recording(state.state_details.flow_run_id)
    return state


def _flow_of(request: Request) -> "Flow[[Any], Any]":
    """Import the request's flow, which takes a second in which a server can start."""
    if isinstance(request, LatestConversionRequest):
        from reshard.flows.convert_latest_checkpoint import convert_latest_checkpoint

        return convert_latest_checkpoint
    from reshard.flows.convert_checkpoint import convert_checkpoint

    return convert_checkpoint


def _run(flow: "Flow[[Any], Any]", request: Request) -> "State[Any]":
    try:
        return cast("State[Any]", flow(request, return_state=True))
    except httpx.HTTPError as error:
        raise _server_error(error) from error


@contextmanager
def _logs_off_the_console() -> Iterator[None]:
    """Send the log lines of runs to the server only, and drop Prefect's own but for warnings."""
    levels = {"prefect": logging.WARNING, "prefect.flow_runs": logging.INFO, "prefect.task_runs": logging.INFO}
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).propagate = name == "prefect" and before[name][1]
    try:
        yield
    finally:
        for name, (level, propagate) in before.items():
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).propagate = propagate


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """End the process in order: a killed process would leave the embedded server behind.

    A program that handles SIGTERM itself goes on doing so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_server() -> None:
    """Check that the configured server answers."""
    if url := settings.PREFECT_API_URL.value():
        check_server_url(str(url))
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
    said = unreachable(str(settings.PREFECT_API_URL.value()), problem)
    return ConversionError(f"{said}. Start it, change that setting, or convert without Prefect: --engine direct")


def _await_recording(flow_run_id: UUID) -> None:
    """Wait until the server has recorded the ends of the tasks, which arrive as events a little later.

    It ends with this process, and tasks that are not recorded by then would stay "running" for ever.
    """
    EventsWorker.instance().wait_until_empty()
    deadline = time.monotonic() + _RECORDING_TIMEOUT_SECONDS
    unfinished = TaskRunFilter(state=TaskRunFilterState(type=_UNFINISHED))
    quiet = 0
    with get_client(sync_client=True) as client:
        children = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run_id]))
        run_ids = [flow_run_id, *(child.id for child in client.read_flow_runs(flow_run_filter=children))]
        ours = FlowRunFilter(id=FlowRunFilterId(any_=run_ids))
        # twice in a row: between two tasks there may be none for a moment
        while quiet < 2 and time.monotonic() < deadline:
            time.sleep(_RECORDING_PAUSE_SECONDS)
            found = client.read_task_runs(
                flow_run_filter=ours, task_run_filter=unfinished, sort=TaskRunSort.ID_DESC, limit=1
            )
            quiet = 0 if found else quiet + 1
