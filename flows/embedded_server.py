"""The embedded Prefect server of a command without a configured one: a process that ends with the command.

Prefect would start one by itself, but it imports a whole server into our process to do so, and the server imports
modules that it does not need here: that doubled the time of every command.
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
    # kinds of blocks are registered when a block is made, or by a server that shows its pages; a search for new ones
    # imports Dask. Both are needed: the first alone would mark them as registered, and that server would rely on it
    settings.PREFECT_API_BLOCKS_REGISTER_ON_START: False,
    settings.PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION: False,
    # its errors show in its answers; its own log would mix with our output
    settings.PREFECT_SERVER_LOGGING_LEVEL: "CRITICAL",
    # otherwise it records task runs one by one, 50 a second, on the processor that the conversion needs
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE: 100,
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE: 10,
    # the end of a run waits for it; Prefect truncates this to whole seconds, and with 0 the server never sleeps
    settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 1,
    # the end of a run would wait a second for the heartbeat thread
    settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
}
"""Settings that keep the embedded server, and runs on it, quick and quiet."""

_STARTUP_SECONDS = 90.0
"""The first start makes a database, which took 18 s."""
_STOP_SECONDS = 5.0
_PROCESS = Path(__file__).with_name("server_process.py")


class EmbeddedServer:
    """A server that is starting or running; it ends with this process."""

    def __init__(self) -> None:
        # the socket listens before the server runs: clients wait, and no other process gets the port
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
            self.process = _start(listening)
        # at exit Prefect first sends its remaining events to the server, because that was registered later
        atexit.register(self._stop)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let Prefect use the server in the block, as soon as it answers."""
        try:
            httpx.get(f"{self.url}/health", timeout=_STARTUP_SECONDS, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            raise embedded_server_error(error) from error
        with settings.temporary_settings({**EMBEDDED_SETTINGS, settings.PREFECT_API_URL: self.url}):
            try:
                yield
            finally:
                _send_events()

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
    """Start the server of this process if it does not run, without waiting for it."""
    global _server
    if _server is None or _server.process.poll() is not None:
        _server = EmbeddedServer()
    return _server


@contextmanager
def using_a_server() -> Iterator[None]:
    """Let Prefect use the configured server in the block, or else the embedded one."""
    if settings.PREFECT_API_URL.value():
        yield
        return
    with start_server().in_use():
        yield


def embedded_server_error(problem: Exception) -> ConversionError:
    """Return the error of an embedded server that fails."""
    return ConversionError(
        f"the embedded Prefect server does not answer: {problem}. `prefect server start` shows why; "
        "--engine direct converts without Prefect"
    )


def is_embedded() -> bool:
    """True if only this machine can reach Prefect's server: it is ours, or Prefect started it."""
    url = settings.PREFECT_API_URL.value()
    return not url or (_server is not None and url == _server.url)


def _send_events() -> None:
    """Send the remaining events, and end what sends them.

    It is Prefect's one for the whole process and stays with the server that it first sent to, so that the events of
    later runs on another server would be lost.
    """
    worker = EventsWorker.instance()
    worker.wait_until_empty()
    worker.drain()


def _start(listening: socket.socket) -> subprocess.Popen[bytes]:
    with settings.temporary_settings(EMBEDDED_SETTINGS):
        environment = settings.get_current_settings().to_environment_variables(exclude_unset=True)
    # a terminal sends Ctrl-C to all processes; the server has to live on, to record the end of the run
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(_PROCESS), str(listening.fileno())],
            stdin=subprocess.PIPE,  # the server ends when this is closed, however our process ends
            env={**os.environ, **environment},
            pass_fds=[listening.fileno()],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
