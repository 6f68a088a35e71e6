"""A real Dask cluster on the loopback: a scheduler and workers, each a process of its own that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60


class DaskProcesses:
    """A running scheduler, and its workers, of one thread each unless said otherwise."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {**os.environ, "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "info", **environment}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.address = self._told(self.scheduler, "Scheduler at:")

    def add_workers(self, count: int, threads: int = 1, preload: Path | None = None) -> None:
        """Starts workers and waits until they are there; nobody starts them again. `preload` is run in each."""
        options = ["--no-nanny", "--nthreads", str(threads), "--no-dashboard", "--host", "127.0.0.1"]
        options += ["--preload", str(preload)] if preload else []
        started = [self._start("worker", self.address, *options) for _ in range(count)]
        for worker in started:
            self._told(worker, "Registered to:")
        self.workers += started

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """`kill -9`."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Ends all."""
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)

    def _start(self, what: str, *options: str) -> "subprocess.Popen[bytes]":
        log = self._directory / f"{what}-{len(self._processes)}.log"
        command = [sys.executable, "-m", "distributed.cli.dask_" + ("scheduler" if what == "scheduler" else "worker")]
        command += [*options, "--local-directory", str(self._directory)] if what == "worker" else options
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def log(self, process: "subprocess.Popen[bytes]") -> str:
        """What a process has said."""
        number = self._processes.index(process)
        [path] = self._directory.glob(f"*-{number}.log")
        return path.read_text(errors="replace")

    def _told(self, process: "subprocess.Popen[bytes]", what: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            for line in self.log(process).splitlines():
                if what in line:
                    return line.partition(what)[2].strip()
            time.sleep(0.05)
        raise RuntimeError(f"Dask did not start: {self.log(process)}")


@contextmanager
def dask_processes(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[DaskProcesses]:
    """A cluster without workers for the time of the block; its logs are in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = DaskProcesses(directory, environment or {})
    try:
        yield cluster
    finally:
        cluster.close()
