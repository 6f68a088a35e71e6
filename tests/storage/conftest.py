"""A real S3 server behind a proxy, for all tests of a session, and a place in it for each test."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from reshard.cli.main import run
from reshard.core.storage.obs import OBSFileSystem
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import S3Server, s3_server

BUCKET = "checkpoints"


@dataclass(frozen=True)
class Store:
    """A place in an object store that belongs to one test.

    Attributes:
        protocol: s3 or obs.
        proxy: all requests go through it.
    """

    protocol: str
    server: S3Server
    proxy: S3Proxy
    prefix: str

    def url(self, path: str) -> str:
        """The URL of an object, or of a directory."""
        return f"{self.protocol}://{BUCKET}/{self.prefix}/{path}"

    def files(self, path: str) -> Path:
        """Where it is stored, past all requests."""
        return self.server.path(BUCKET, f"{self.prefix}/{path}")

    def add(self, source: Path, path: str) -> str:
        """Puts a file or a directory there, past all requests; its URL."""
        target = self.files(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        self.server.look_again()
        return self.url(path)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "root", (BUCKET,)) as running:
        yield running


@pytest.fixture(scope="session")
def shared_proxy(server: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(server) as running:
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
    """An empty place, in an environment that leads there; the proxy begins anew, without latency and faults."""
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


def forget_connections() -> None:
    """fsspec gives the same file system for the same options, which the environment is not among."""
    for kind in (S3FileSystem, OBSFileSystem):
        kind.clear_instance_cache()


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
