"""Runs a command and says what it took: wall time, memory of its whole process tree, bytes through the kernel."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.errors import BenchmarkError

_SAMPLE_SECONDS = 0.02
# finding a tree's processes looks at every process of the machine: too dear to be done at each sample
_SAMPLES_PER_SEARCH = 10
_TAIL_LINES = 15
_END_SECONDS = 15
_UNWANTED_VARIABLES = re.compile(r"PYTHONDONTWRITEBYTECODE$|(AWS|FSSPEC|RCLONE)_|\w+_proxy$", re.IGNORECASE)
_HIGH_WATER = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Measurement:
    """What a command took.

    Attributes:
        seconds: from its start to its end.
        peak_bytes: resident memory of its processes together, at the highest.
        read_bytes: what its processes had the kernel read for them, from whatever: files, programs, pipes. Mapped
            files are not in it.
        written_bytes: of the same processes.
        output: what it printed.
        processor_seconds: of its processes together, the kernel's work for them included.
    """

    seconds: float
    peak_bytes: int
    read_bytes: int
    written_bytes: int
    output: str
    processor_seconds: float


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measurement:
    """Runs a command to its end.

    Raises:
        BenchmarkError: it failed; with the last lines that it printed.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**_environment(), **(environment or {})},
            start_new_session=True,  # so that it can be ended with all its processes
        )
        sampler = _MemorySampler(process.pid)
        sampler.start()
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - started
            # an ended process that nobody has waited for still tells what it, and what it waited for, took
            ended = psutil.Process(process.pid)
            counters, times = ended.io_counters(), ended.cpu_times()
        except BaseException:
            end_group(process)
            raise
        finally:
            sampler.stop()
        process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
        if process.returncode:
            errors.seek(0)
            printed = errors.read().decode(errors="replace") + text
            tail = "\n".join(printed.strip().splitlines()[-_TAIL_LINES:])
            raise BenchmarkError(f"{' '.join(command)}\nended with exit code {process.returncode}:\n{tail}")
    return Measurement(
        seconds=seconds,
        peak_bytes=sampler.peak_bytes,
        read_bytes=counters.read_chars,
        written_bytes=counters.write_chars,
        output=text,
        processor_seconds=times.user + times.system + times.children_user + times.children_system,
    )


def _environment() -> dict[str, str]:
    """This process's, but programs may keep their bytecode, as they do for everyone else.

    What somebody has set up for object stores is not in it either, nor are proxies: all servers run on this machine.
    """
    return {name: value for name, value in os.environ.items() if not _UNWANTED_VARIABLES.match(name)}


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and all that it started; it leads a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return


class _MemorySampler(threading.Thread):
    """Adds up the resident memory of a process and its descendants, again and again."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        samples = 0
        tree = [self._root]
        while not self._ended.wait(_SAMPLE_SECONDS):
            if samples % _SAMPLES_PER_SEARCH == 0:
                tree = self._find_tree()
            samples += 1
            self.peak_bytes = max(self.peak_bytes, self._root_peak_bytes(), sum(map(_resident_bytes, tree)))

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _root_peak_bytes(self) -> int:
        """The most that the first process ever had, which the kernel knows without samples.

        Not from `wait4`: that counts in what this process has, from which it was forked.
        """
        try:
            found = _HIGH_WATER.search(Path(f"/proc/{self._root.pid}/status").read_text())
        except OSError:
            found = None
        return int(found[1]) * 1024 if found else 0

    def _find_tree(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return [self._root]


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
