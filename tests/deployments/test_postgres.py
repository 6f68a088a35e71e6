"""A Prefect server on PostgreSQL, set up as compose.yaml does it: deployments, a schedule that fires, metrics."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.deployed import STEP, Demo, reshard
from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.postgres import needs_postgres, postgres_server
from tests.support.prefect_server import PrefectServer, prefect_server, prefect_worker
from tests.support.runs import Files, check_finished

pytestmark = [pytest.mark.slow, needs_postgres]

PASSWORD = "p@ss/w:ord %41#?"
"""Nothing in it may need escapes: it is no part of a URL."""


@pytest.fixture
def on_postgres(tmp_path: Path) -> Iterator[PrefectServer]:
    """A server whose database is PostgreSQL's."""
    directory = Path(tempfile.mkdtemp(prefix="reshard-postgres-"))  # the database's user cannot reach pytest's
    with postgres_server(directory, PASSWORD) as settings:
        compose = yaml.safe_load((PROJECT / "deployments/compose.yaml").read_text())
        named = {name for name in compose["services"]["server"]["environment"] if "DATABASE" in name}
        assert named == settings.keys() - {"PREFECT_SERVER_DATABASE_PORT"}
        with prefect_server(tmp_path / "prefect", settings) as server:
            yield server
    shutil.rmtree(directory)


def test_a_schedule_fires_and_a_worker_converts(
    on_postgres: PrefectServer, demo: Demo, wanted: Files, tmp_path: Path
) -> None:
    deployed = reshard(on_postgres, "deploy")
    assert deployed.returncode == 0, deployed.stderr
    target = tmp_path / "converted"
    made = reshard(on_postgres, "schedule", *demo.arguments(target), "--every", "10s", "--name", "often")
    assert made.returncode == 0, made.stderr
    with prefect_worker(on_postgres, tmp_path / "worker"):
        until((target / STEP).exists, "nothing was converted")
    assert reshard(on_postgres, "schedule", "--remove", "often").returncode == 0
    check_finished(target / STEP, wanted, "on PostgreSQL")
    assert not (on_postgres.home / "prefect.db").exists()
    metrics = reshard(on_postgres, "metrics", "--once")
    assert "\nreshard_up 1.0\n" in f"\n{metrics.stdout}"
