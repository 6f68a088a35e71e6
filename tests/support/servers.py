"""Servers of other makers, each in a process of its own that does not outlive this one."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.patience import PATIENCE_SECONDS

# whatever becomes of this process, its end of the shell's standard input is closed, and the server is killed, with all
# processes of its own
_KILLED_WITH_US = 'exec 3<&0; "$@" & server=$!; (cat <&3 >/dev/null; kill -9 0) & wait $server'


@contextmanager
def server_process(
    command: Sequence[object], started: re.Pattern[str], log_path: Path, environment: Mapping[str, str]
) -> Iterator[re.Match[str]]:
    """Runs a server for the time of the block; yields what it says in its log once it has started."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", _KILLED_WITH_US, "sh", *map(str, command)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin
    try:
        yield _await(started, log_path, process)
    finally:
        process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(started: re.Pattern[str], log_path: Path, process: subprocess.Popen[bytes]) -> re.Match[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        # before the log: what it says last is read
        ended = process.poll() is not None
        log = log_path.read_text()
        if found := started.search(log):
            return found
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {log}")
        time.sleep(0.01)
