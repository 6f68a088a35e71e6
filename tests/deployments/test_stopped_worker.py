"""What becomes of runs whose worker is stopped as services are: as the image's process, and as a unit of systemd."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.deployed import Demo, outcomes_of, start_slow_run
from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    await_run,
    free_port,
    prefect_worker,
    retry_run,
)
from tests.support.runs import Files, check_finished, partial, recorded_ranks
from tests.support.s3_proxy import S3Proxy

pytestmark = pytest.mark.slow

DEPLOYMENTS = PROJECT / "deployments"
COMPOSED = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())["services"]["worker"]
UNIT = (DEPLOYMENTS / "systemd/reshard-worker.service").read_text().replace("\\\n", "")


def _command(how: str) -> list[str]:
    if how == "systemd":
        [line] = re.findall(r"^ExecStart=/opt/reshard/bin/(.*)$", UNIT, re.MULTILINE)
        return line.split()
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in COMPOSED["command"]]
    return [str(DEPLOYMENTS / "entrypoint.sh"), *words]


def _stop(how: str, worker: Worker) -> None:
    if how == "systemd":
        [script] = re.findall(r"^ExecStop=/bin/sh -c '(.*)'$", UNIT, re.MULTILINE)
        script = script.replace("$MAINPID", str(worker.pid)).replace("$$", "$")
        subprocess.run(["/bin/sh", "-c", script], check=True, timeout=60)
    worker.terminate()


@pytest.mark.parametrize("how", ["image", "systemd"])
def test_its_run_ends_at_once_and_says_so_and_a_retry_resumes_it(
    server: PrefectServer, demo: Demo, slow_store: S3Proxy, wanted: Files, tmp_path: Path, how: str
) -> None:
    target = tmp_path / "target"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = demo.store.environment | {"PATH": path, "PREFECT_WORKER_WEBSERVER_PORT": str(free_port())}
    stopped = Worker(server, tmp_path / "stopped", _command(how), settings)
    try:
        run_id = start_slow_run(server, demo, target)
        done = recorded_ranks(target)
        _stop(how, stopped)
        ended = await_run(server, run_id, "Crashed")
        assert ended.state
        assert "termination signal" in str(ended.state.message)
        until(lambda: stopped.ended, "the worker goes on")
    finally:
        stopped.kill()
    # it has given back its claim on the target
    assert not (partial(target) / ".reshard" / "leases").exists()

    slow_store.begin_anew()
    with prefect_worker(server, tmp_path / "other", demo.store.environment):
        retry_run(server, run_id)
        await_run(server, run_id, "Completed")
    assert outcomes_of(server, run_id)["resumed"] >= len(done) > 0
    check_finished(target, wanted, f"after a worker was stopped as {how} does")
