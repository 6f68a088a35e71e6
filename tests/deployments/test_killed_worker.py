"""What becomes of a run that is killed with its worker: nobody is left who could tell the server."""

from datetime import timedelta
from pathlib import Path

import pytest

from reshard.deployments.deploy import crashed_automation
from tests.support.deployed import Demo, outcomes_of, start_slow_run
from tests.support.prefect_server import PrefectServer, await_run, prefect_worker, retry_run
from tests.support.runs import Files, check_finished, recorded_ranks
from tests.support.s3_proxy import S3Proxy

pytestmark = pytest.mark.slow


def test_it_is_crashed_by_the_automation_and_a_retry_resumes_it(
    server: PrefectServer, demo: Demo, slow_store: S3Proxy, wanted: Files, tmp_path: Path
) -> None:
    # runs give a sign of life every 30 s, not oftener; the one that is deployed waits for three of them
    impatient = server.client.create_automation(crashed_automation(["reshard"], missed=timedelta(seconds=40)))
    target = tmp_path / "target"
    with prefect_worker(server, tmp_path / "killed", demo.store.environment) as doomed:
        run_id = start_slow_run(server, demo, target)
        doomed.kill()
    done = recorded_ranks(target)
    crashed = await_run(server, run_id, "Crashed")
    assert crashed.state
    assert str(crashed.state.message).startswith("No sign of life for 40 s")
    server.client.delete_automation(impatient)

    slow_store.begin_anew()
    with prefect_worker(server, tmp_path / "other", demo.store.environment):
        retry_run(server, run_id)
        await_run(server, run_id, "Completed")
    assert outcomes_of(server, run_id)["resumed"] >= len(done) > 0
    check_finished(target, wanted, "after a killed worker")
