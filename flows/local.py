"""Runs the flow from this process: on the server that is configured, or on the one that Prefect brings along."""

import logging

from prefect import get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from core.errors import ConversionError
from core.progress import Progress, reporting_to
from core.report import ConversionReport
from core.request import ConversionRequest
from flows.convert_checkpoint import convert_checkpoint

_STARTUP_TIMEOUT_SECONDS = 90
"""The first start makes a database: 18 s were seen, and Prefect gives up after 20 by default."""


def run_locally(request: ConversionRequest, progress: Progress) -> ConversionReport:
    """Runs the flow in this process and returns its report. An embedded server ends with the process.

    Prefect's log lines go to the server only: the console is the caller's.

    Raises:
        InputError: the request or what it names is wrong.
        VerificationError: a written file is not what it was to be.
        ConversionError: it failed all the same, or there is no Prefect server.
    """
    _leave_the_console()
    embedded = {
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _STARTUP_TIMEOUT_SECONDS,
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        # ending a run would wait a second for the thread that tells a server we are alive
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings({} if PREFECT_API_URL.value() else embedded), reporting_to(progress):
        _check_server()
        return convert_checkpoint(request)


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
        which = f"server at {PREFECT_API_URL.value()}" if PREFECT_API_URL.value() else "embedded server"
        raise ConversionError(
            f"Prefect's {which} does not answer: {problem}. Start it, unset PREFECT_API_URL to use the embedded one, "
            "or convert without Prefect: --engine direct"
        )


def _leave_the_console() -> None:
    logging.getLogger("prefect").setLevel(logging.WARNING)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.propagate = False
