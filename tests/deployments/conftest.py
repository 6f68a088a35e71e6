"""A Prefect server with the deployments on it, a worker, and a checkpoint that is slow to read if a test wants that."""

import os
import shutil
import time
from collections.abc import Iterator

import pytest

from demo.make_checkpoint import make_demo
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import ConversionRequest
from reshard.core.storage.urls import parse_url
from tests.support.deployed import Demo, reshard
from tests.support.postgres import HAS_POSTGRES, postgres_server
from tests.support.prefect_server import (
    PrefectServer,
    Worker,
    prefect_server,
    prefect_worker,
)
from tests.support.runs import Files, files_of
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import s3_server

DATABASE_PASSWORD = "p@ss/w:ord %41#?"
"""Nothing in it may need escapes: it is no part of a URL."""

SLOW_SECONDS = 0.2
"""Each request to the store takes so long: the demo's conversion twenty seconds."""


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


@pytest.fixture(scope="session")
def database() -> Iterator[dict[str, str]]:
    """Settings of a server's database: PostgreSQL if it is installed; with SQLite, a busy server loses events."""
    if HAS_POSTGRES:
        with postgres_server(DATABASE_PASSWORD) as settings:
            yield settings
    else:
        yield {}


@pytest.fixture(scope="session")
def bare_server(database: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server that knows nothing yet."""
    with prefect_server(tmp_path_factory.mktemp("prefect"), database) as server:
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
