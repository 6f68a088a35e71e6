"""What becomes of runs that are cancelled, whose processes are killed, or whose server goes away for a while."""

import logging
import signal
import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.objects import Log

from tests.support.deployed import CONVERT, Demo, outcomes_of, start_slow_run
from tests.support.patience import until
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    await_run,
    cancel_run,
    logs_of,
    retry_run,
    start_run,
)
from tests.support.runs import Files, check_finished, partial, recorded_ranks
from tests.support.s3_proxy import S3Proxy

pytestmark = pytest.mark.slow

GRACE_SECONDS = 30
"""A run that does not end when it is cancelled is killed after so long."""


def test_a_cancelled_run_stops_soon_and_another_resumes_it(
    server: PrefectServer, worker: Worker, demo: Demo, slow_store: S3Proxy, wanted: Files, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    run_id = start_slow_run(server, demo, target)
    slow_store.latency_seconds = 2.0
    done = recorded_ranks(target)
    cancelled = time.monotonic()
    cancel_run(server, run_id)
    await_run(server, run_id, "Cancelled")
    # it stopped in the middle of a rank, and was not killed: it has given back its claim on the target
    assert recorded_ranks(target) == done
    assert time.monotonic() - cancelled < GRACE_SECONDS
    assert not (partial(target) / ".reshard" / "leases").exists()
    assert not target.exists()
    logs = until(lambda: _logs_once_cancelled(server, run_id), "no word of it")
    assert not [log.message for log in logs if log.level > logging.INFO]
    assert not [log.message for log in logs if "Traceback" in log.message or "Running()" in log.message]

    slow_store.begin_anew()
    again = start_run(server, CONVERT, demo.slow_parameters(target))
    await_run(server, again, "Completed")
    assert outcomes_of(server, again)["resumed"] >= len(done)
    check_finished(target, wanted, "after a cancelled run")


def _logs_once_cancelled(server: PrefectServer, run_id: UUID) -> list[Log]:
    logs = logs_of(server, run_id)
    return logs if any("was cancelled" in log.message for log in logs) else []


def test_a_run_whose_process_is_killed_is_crashed_and_a_retry_resumes_it(
    server: PrefectServer, worker: Worker, demo: Demo, slow_store: S3Proxy, wanted: Files, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    run_id = start_slow_run(server, demo, target)
    for process in worker.flow_processes():
        if process.is_running() and "prefect.engine" in process.cmdline():
            process.kill()
    crashed = await_run(server, run_id, "Crashed")
    assert crashed.state
    assert "SIGKILL" in str(crashed.state.message)
    done = recorded_ranks(target)
    # the worker has two parts that say so, one after the other; a retry in between would be undone by the second
    until(lambda: any("memory allocation" in log.message for log in logs_of(server, run_id)), "no word of it")
    slow_store.begin_anew()
    retry_run(server, run_id)
    await_run(server, run_id, "Completed")
    assert outcomes_of(server, run_id)["resumed"] >= len(done) > 0
    check_finished(target, wanted, "after a killed process")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_outlives_a_restart_of_the_server(
    server: PrefectServer,
    worker: Worker,
    demo: Demo,
    slow_store: S3Proxy,
    wanted: Files,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    target = tmp_path / "target"
    run_id = start_slow_run(server, demo, target)
    server.kill(number)
    if number == signal.SIGTERM:
        # it is down at the moment when the run ends
        slow_store.begin_anew()
        until(target.exists, "the target is not there")
    else:
        slow_store.latency_seconds = 2.0  # it goes on until the server is back
    server.start()
    slow_store.begin_anew()
    await_run(server, run_id, "Completed")
    assert outcomes_of(server, run_id) == {"written": 4}
    check_finished(target, wanted, f"after {number.name} to the server")
