"""A Prefect server on PostgreSQL, set up as compose.yaml does it: a schedule that fires, metrics."""

from pathlib import Path

import pytest
import yaml

from tests.support.deployed import STEP, Demo, reshard
from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.postgres import needs_postgres
from tests.support.prefect_server import PrefectServer, prefect_worker
from tests.support.runs import Files, check_finished

pytestmark = [pytest.mark.slow, needs_postgres]


def test_a_schedule_fires_and_a_worker_converts(
    server: PrefectServer, demo: Demo, wanted: Files, tmp_path: Path
) -> None:
    compose = yaml.safe_load((PROJECT / "deployments/compose.yaml").read_text())
    named = {name for name in compose["services"]["server"]["environment"] if "DATABASE" in name}
    assert named == server.settings.keys() - {"PREFECT_SERVER_DATABASE_PORT"}
    target = tmp_path / "converted"
    made = reshard(server, "schedule", *demo.arguments(target), "--every", "10s", "--name", "often")
    assert made.returncode == 0, made.stderr
    with prefect_worker(server, tmp_path / "worker"):
        until((target / STEP).exists, "nothing was converted")
    assert reshard(server, "schedule", "--remove", "often").returncode == 0
    check_finished(target / STEP, wanted, "on PostgreSQL")
    assert not (server.home / "prefect.db").exists()
    metrics = reshard(server, "metrics", "--once")
    assert "\nreshard_up 1.0\n" in f"\n{metrics.stdout}"
