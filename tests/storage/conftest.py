"""A real S3 server behind a proxy, for all tests of a session, and a place in it for each test."""

import os
import re
from collections.abc import Callable, Iterator

import pytest

from reshard.cli.main import run
from tests.support.azure_server import AZURITE, NO_AZURITE, AzureServer, azure_server
from tests.support.gcs_server import GcsServer, gcs_server
from tests.support.moto_server import moto_server
from tests.support.s3_client import s3_client, shared_descriptions
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import S3Server, s3_server
from tests.support.stores import BUCKET, Store, forget_connections


@pytest.fixture(scope="session", autouse=True)
def _shared_descriptions() -> Iterator[None]:
    with shared_descriptions():
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "root", (BUCKET,)) as running:
        yield running


@pytest.fixture(scope="session")
def shared_proxy(server: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(server) as running:
        yield running


@pytest.fixture(scope="session")
def shared_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto_server(tmp_path_factory.mktemp("moto"), BUCKET) as running:
        yield running


@pytest.fixture
def moto(shared_moto: S3Server) -> S3Server:
    """A server of another kind, which judges conditions, with an empty bucket."""
    client = s3_client(shared_moto.url)
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    return shared_moto


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that wants the bucket in the host's name."""
    with s3_server(tmp_path_factory.mktemp("virtual") / "root", (BUCKET,), virtual_hosts=True) as running:
        yield running


@pytest.fixture(scope="module")
def virtual_proxy(virtual: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(virtual) as running:
        yield running


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with gcs_server(tmp_path_factory.mktemp("gcs"), BUCKET) as running:
        yield running


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    if not AZURITE.exists() and "CI" not in os.environ:
        pytest.skip(NO_AZURITE)
    with azure_server(tmp_path_factory.mktemp("azure"), BUCKET) as running:
        yield running


@pytest.fixture
def protocol() -> str:
    """A test may be parametrized with others."""
    return "s3"


@pytest.fixture
def store(
    server: S3Server,
    shared_proxy: S3Proxy,
    protocol: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Store]:
    """An empty place, in an environment that leads there; the proxy is reset, without latency and faults."""
    variables = shared_proxy.environment
    if protocol == "obs":
        variables = {
            "OBS_ENDPOINT": shared_proxy.url,
            "OBS_ACCESS_KEY_ID": server.access_key,
            "OBS_SECRET_ACCESS_KEY": server.secret_key,
        }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    shared_proxy.begin_anew()
    # the same for each run, for chance to hit the same requests
    prefix = re.sub(r"\W+", "-", f"{request.module.__name__.rpartition('.')[2]}-{request.node.name}").strip("-")
    yield Store(protocol, server, shared_proxy, prefix)
    shared_proxy.begin_anew()
    forget_connections()


@pytest.fixture
def reshard(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`reshard(*arguments)` in this process, to its good end: what it prints."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return call
