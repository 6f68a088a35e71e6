"""A Prefect server for the time of a benchmark, which leaves nothing behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.errors import BenchmarkError
from benchmarks.measure import end_group

_START_SECONDS = 120


@contextmanager
def prefect_server(home: Path) -> Iterator[Mapping[str, str]]:
    """A running server with its database in `home`; yields the environment of its clients.

    Raises:
        BenchmarkError: it does not start.
    """
    home.mkdir()
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {"PREFECT_HOME": str(home), "PREFECT_API_URL": url, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-ui",
    ]
    log = home / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            # a terminal's Ctrl-C is for us; the server has to live until its clients have ended
            start_new_session=True,
        )
    try:
        _await_health(server, f"{url}/health", log)
        yield environment
    finally:
        if server.poll() is None:
            end_group(server)


def free_port() -> int:
    """A port that nobody listens at, for now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _await_health(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise BenchmarkError(f"the Prefect server did not start within {_START_SECONDS} s:\n{tail}")
