"""A Prefect server with the deployments on it, a worker, and a checkpoint that is slow to read if a test wants that."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from demo.make_checkpoint import make_demo
from reshard.core.convert import convert
from reshard.core.request import ConversionRequest
from reshard.core.storage.urls import parse_url
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    artifacts_of,
    await_run,
    prefect_server,
    prefect_worker,
    start_run,
    until,
)
from tests.support.runs import PROJECT, Files, files_of, recorded_ranks
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import s3_server

SLOW_SECONDS = 0.3
"""Each request to the store takes so long: the demo's conversion half a minute."""
CONVERT = "convert-checkpoint/convert"


@dataclass(frozen=True)
class Demo:
    """The demo's checkpoint, on a local disk and in a store."""

    directory: Path
    store: S3Proxy

    def parameters(self, target: Path, **others: object) -> dict[str, object]:
        """Of a conversion of a second."""
        strategies = {
            name: str(self.directory / name.removeprefix("source_")) for name in ("source_strategy", "target_strategy")
        }
        return {"source": str(self.directory / "checkpoint"), "target": str(target), **strategies, **others}

    def slow_parameters(self, target: Path) -> dict[str, object]:
        """Of a conversion that takes as long as the store is slow, rank by rank."""
        return self.parameters(target, source="s3://source/checkpoint", workers=1, memory_limit="16MiB")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    directory = tmp_path_factory.mktemp("demo")
    make_demo(parse_url(str(directory)))
    # what was saved a moment ago may still be changing, and convert-latest would wait
    for path in (directory / "checkpoint").rglob("*"):
        os.utime(path, (0, time.time() - 3600))
    with s3_server(tmp_path_factory.mktemp("store") / "buckets") as store, s3_proxy(store) as proxy:
        shutil.copytree(directory / "checkpoint", store.path("source", "checkpoint"))
        store.look_again()
        yield Demo(directory, proxy)


def reshard(server: PrefectServer, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """The command, told of the server."""
    command = [sys.executable, "-m", "reshard.cli.main", *arguments]
    return subprocess.run(
        command,
        cwd=PROJECT,
        env=server.environment | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="session")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server that knows nothing yet."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture(scope="session")
def server(bare_server: PrefectServer) -> PrefectServer:
    """A server with the deployments."""
    done = reshard(bare_server, "deploy")
    assert done.returncode == 0, done.stderr
    return bare_server


@pytest.fixture(scope="module")
def worker(server: PrefectServer, demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker in an empty directory."""
    with prefect_worker(server, tmp_path_factory.mktemp("worker"), demo.store.environment) as worker:
        yield worker


@pytest.fixture(scope="session")
def wanted(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of an undisturbed conversion."""
    target = tmp_path_factory.mktemp("wanted") / "target"
    convert(ConversionRequest.model_validate(demo.parameters(target)))
    return files_of(target)


@pytest.fixture
def slow_store(demo: Demo) -> Iterator[S3Proxy]:
    demo.store.latency_seconds = SLOW_SECONDS
    yield demo.store
    demo.store.begin_anew()


def start_slow_run(server: PrefectServer, demo: Demo, target: Path) -> UUID:
    """A run that has written a rank, and has others to write."""
    run_id = start_run(server, CONVERT, demo.slow_parameters(target))
    await_run(server, run_id, "Running")
    until(lambda: recorded_ranks(target), "no rank is done", 90)
    assert not target.exists()
    return run_id


def outcomes_of(server: PrefectServer, run_id: UUID) -> Counter[str]:
    """How many ranks a run wrote, copied, or found done by an earlier one."""
    rows = artifacts_of(server, run_id)["conversion-ranks"]
    return Counter(row["outcome"] for row in (json.loads(rows) if isinstance(rows, str) else rows))
