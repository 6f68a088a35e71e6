"""The Prefect server that a command brings along where none is configured: a process that ends with ours.

Prefect would start one by itself, but it imports all of a server into our process to do so, and the server imports what
it has no use for here: that made every command twice as long.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect import settings
from prefect.events.worker import EventsWorker

from reshard.core.errors import ConversionError

EMBEDDED_SETTINGS: dict[Any, Any] = {
    settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
    settings.PREFECT_UI_ENABLED: False,
    # kinds of blocks are registered when a block is made, or by the server that shows its pages; to look whether there
    # are new ones imports Dask. Both: the former alone would note them as registered, and that server believes it
    settings.PREFECT_API_BLOCKS_REGISTER_ON_START: False,
    settings.PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION: False,
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
"""Settings that keep the embedded server, and runs on it, quick and quiet."""

_STARTUP_SECONDS = 90.0
"""The first start makes a database: 18 s were seen."""
_STOP_SECONDS = 5.0
_PROCESS = Path(__file__).with_name("server_process.py")


class EmbeddedServer:
    """A server that is starting, or has started; it ends with this process."""

    def __init__(self) -> None:
        # it is listened to before there is a server: whoever asks waits for it, and nobody else gets the port
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
            self.process = _start(listening)
        # at exit Prefect tells it what it has not yet told: that comes first, being registered later
        atexit.register(self._stop)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Has Prefect use it in the block, as soon as it answers.

        Raises:
            ConversionError: it does not.
        """
        try:
            httpx.get(f"{self.url}/health", timeout=_STARTUP_SECONDS, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            raise embedded_server_error(error) from error
        with settings.temporary_settings({**EMBEDDED_SETTINGS, settings.PREFECT_API_URL: self.url}):
            yield

    def _stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_server: EmbeddedServer | None = None


def start_server() -> EmbeddedServer:
    """Starts the server of this process if it does not run; until it answers, something else can be done."""
    global _server
    if _server is None or _server.process.poll() is not None:
        _server = EmbeddedServer()
    return _server


@contextmanager
def using_a_server() -> Iterator[None]:
    """Has Prefect use the server that is configured in the block, or else the embedded one."""
    if settings.PREFECT_API_URL.value():
        yield
        return
    with start_server().in_use():
        yield
        EventsWorker.instance().wait_until_empty()  # at exit Prefect would complain that it has some to send


def embedded_server_error(problem: Exception) -> ConversionError:
    """What to tell when the embedded server fails."""
    return ConversionError(
        f"the embedded Prefect server does not answer: {problem}. `prefect server start` would tell why; "
        "without Prefect goes --engine direct"
    )


def is_embedded() -> bool:
    """Whether the server that Prefect uses is one that only this machine reaches: ours, or one that it started."""
    url = settings.PREFECT_API_URL.value()
    return not url or (_server is not None and url == _server.url)


def _start(listening: socket.socket) -> subprocess.Popen[bytes]:
    with settings.temporary_settings(EMBEDDED_SETTINGS):
        environment = settings.get_current_settings().to_environment_variables(exclude_unset=True)
    # a terminal sends Ctrl-C to all processes; the server has to live on, to be told how the run ended
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(_PROCESS), str(listening.fileno())],
            stdin=subprocess.PIPE,  # it ends when this is closed, as it is however our process ends
            env={**os.environ, **environment},
            pass_fds=[listening.fileno()],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
