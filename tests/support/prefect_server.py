"""A real Prefect server and real workers, as processes of their own, which may be killed and started again."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, Log, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import LogSort

from tests.support.patience import PATIENCE_SECONDS, until

PREFECT = (sys.executable, "-m", "prefect")


class PrefectServer:
    """`prefect server start` with a home, a database and a port of its own.

    Attributes:
        home: its directory; the database in it outlives the process.
        settings: its own, such as its database.
        api_url: what PREFECT_API_URL is to be.
    """

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.settings = settings or {}
        self.port = free_port()
        self.api_url = f"http://127.0.0.1:{self.port}/api"
        self.client = SyncPrefectClient(self.api_url)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Of processes that are to talk to it; they find no other settings of Prefect."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return inherited | {"PREFECT_HOME": str(self.home), "PREFECT_API_URL": self.api_url}

    def start(self) -> None:
        """Starts it, on the database that is there; it answers afterwards."""
        self.home.mkdir(parents=True, exist_ok=True)
        settings = {
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_API_URL": self.api_url,
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            **self.settings,
        }
        command = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = _started(command, self.home, self.environment | settings, self.home / "server.log")
        until(self._answers, "the server does not answer")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends it a signal, and waits for its end."""
        assert self._process
        os.killpg(self._process.pid, number)
        self._process.wait(PATIENCE_SECONDS)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self.home / "server.log").read_text()
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return bool(opener.open(f"{self.api_url}/health", timeout=5).status == 200)
        return False


class Worker:
    """`prefect worker start`, or another command that carries out runs, in an empty directory and a process group."""

    def __init__(self, server: PrefectServer, directory: Path, command: list[str], settings: Mapping[str, str]) -> None:
        self.directory = directory / "empty"
        self.directory.mkdir(parents=True)
        self.log = directory / "worker.log"
        quick = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
        self._process = _started(command, self.directory, server.environment | quick | dict(settings), self.log)
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """Of its process; None while it lives."""
        return self._process.poll()

    def terminate(self) -> None:
        """SIGTERM to it alone."""
        self._process.terminate()

    def flow_processes(self) -> list[psutil.Process]:
        """The processes of its flow runs and what they started."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def kill(self) -> None:
        """`kill -9` to it and to all that it started."""
        with suppress(psutil.NoSuchProcess):
            processes = [psutil.Process(self._process.pid), *self.flow_processes()]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(PATIENCE_SECONDS)


@contextmanager
def prefect_server(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[PrefectServer]:
    """Runs a server for the time of the block; `settings` are its own, such as its database."""
    server = PrefectServer(home, settings)
    server.start()
    try:
        with server.client:
            yield server
    finally:
        with suppress(ProcessLookupError):
            server.kill()


@contextmanager
def prefect_worker(
    server: PrefectServer, directory: Path, settings: Mapping[str, str] | None = None, pool: str = "reshard"
) -> Iterator[Worker]:
    """Runs a worker of a pool for the time of the block; `settings` are also those of its runs."""
    worker = Worker(server, directory, [*PREFECT, "worker", "start", "--pool", pool], settings or {})
    try:
        yield worker
    finally:
        worker.kill()


def start_run(server: PrefectServer, deployment: str, parameters: Mapping[str, Any]) -> UUID:
    """Starts a run of a deployment as the UI does.

    Raises:
        PrefectHTTPStatusError: the server refuses the parameters.
    """
    found = server.client.read_deployment_by_name(deployment)
    return server.client.create_flow_run_from_deployment(found.id, parameters=dict(parameters)).id


def retry_run(server: PrefectServer, run_id: UUID) -> None:
    """What the UI's button Retry does."""
    state: State[None] = State(type=StateType.SCHEDULED, name="AwaitingRetry", message="Retry from the UI")
    answer = server.client.set_flow_run_state(run_id, state)
    assert answer.status == SetStateStatus.ACCEPT, answer


def cancel_run(server: PrefectServer, run_id: UUID) -> None:
    """What the UI's button Cancel does."""
    server.client.set_flow_run_state(run_id, State(type=StateType.CANCELLING, name="Cancelling"))


def await_run(server: PrefectServer, run_id: UUID, *states: str) -> FlowRun:
    """Waits until a run is in one of these states (by name); by default any in which it ends."""

    def reached() -> FlowRun | None:
        with suppress(OSError):
            run = server.client.read_flow_run(run_id)
            assert run.state
            # what ends a run ends the waiting, whatever is waited for
            return run if run.state.name in states or run.state.is_final() else None
        return None

    run = until(reached, f"the run is not {' or '.join(states) or 'ended'}")
    assert run.state
    assert not states or run.state.name in states, f"it is {run.state.name}: {run.state.message}"
    return run


def logs_of(server: PrefectServer, run_id: UUID) -> list[Log]:
    """What the UI shows as a run's logs."""
    ours = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
    return server.client.read_logs(ours, limit=200, offset=0, sort=LogSort.TIMESTAMP_ASC)


def artifacts_of(server: PrefectServer, run_id: UUID) -> dict[str | None, Any]:
    """A run's artifacts by key."""
    ours = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    answer = server.client.request(
        "POST", "/artifacts/filter", json={"artifacts": ours.model_dump(mode="json"), "limit": 200, "offset": 0}
    )
    return {artifact["key"]: artifact["data"] for artifact in answer.json()}


def _started(command: list[str], directory: Path, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
