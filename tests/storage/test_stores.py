"""Real servers keep the promises of storages."""

import re
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.store import Reader
from reshard.core.storage.stores import open_store
from tests.support.azure_server import AzureServer
from tests.support.gcs_server import GcsServer
from tests.support.past_stores import PastAzure, PastGcs, PastS3
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server
from tests.support.store_tests import NAMES, MarkedStoreTests, ObjectStoreTests, Place, content
from tests.support.stores import BUCKET, forget_connections


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """The path of an empty directory."""
    name = re.sub(r"\W+", "-", request.node.nodeid.rpartition("/")[2])
    return f"{BUCKET}/{name.strip('-')}"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Place]]:
    """`opened(protocol, root, variables, past)`: a place on a server to which `variables` lead."""

    def open_place(protocol: str, root: str, variables: dict[str, str], past: PastS3 | PastAzure) -> Place:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        forget_connections()
        store, path = open_store(f"{protocol}://{root}", {})
        assert path == root
        return Place(store, root, past.put, past.get, past.mark, past.upload, past.secrets)

    yield open_place
    forget_connections()


class TestS3OnRclone(ObjectStoreTests):
    """Behind the proxy, which heeds conditions of reading."""

    judges_conditions: ClassVar[bool] = False
    tells_missing: ClassVar[bool] = False

    @pytest.fixture
    def place(self, server: S3Server, shared_proxy: S3Proxy, root: str, opened: Callable[..., Place]) -> Place:
        return opened("s3", root, shared_proxy.environment, PastS3(server.url))


class TestObsOnRclone(ObjectStoreTests):
    """With the bucket in the host's name, which the proxy takes for its own."""

    judges_conditions: ClassVar[bool] = False
    tells_missing: ClassVar[bool] = False

    @pytest.fixture
    def place(self, virtual: S3Server, virtual_proxy: S3Proxy, root: str, opened: Callable[..., Place]) -> Place:
        variables = {
            "OBS_ENDPOINT": "http://obs.region-1.example.com",
            "OBS_ACCESS_KEY_ID": virtual.access_key,
            "OBS_SECRET_ACCESS_KEY": virtual.secret_key,
            "http_proxy": virtual_proxy.url,
        }
        past = PastS3(
            "http://obs.region-1.example.com", proxies={"http": virtual_proxy.url}, s3={"addressing_style": "virtual"}
        )
        return opened("obs", root, variables, past)

    def test_the_bucket_is_in_the_hosts_name(self, place: Place, virtual_proxy: S3Proxy) -> None:
        place.store.put(place.at("file"), b"x")
        assert virtual_proxy.exchanges()[-1].call.host == f"{BUCKET}.obs.region-1.example.com"


class TestS3OnMoto(MarkedStoreTests):
    tells_missing: ClassVar[bool] = False

    @pytest.fixture
    def place(self, moto: S3Server, root: str, opened: Callable[..., Place]) -> Place:
        return opened("s3", root, moto.environment, PastS3(moto.url))


class TestGcs(MarkedStoreTests):
    tells_missing: ClassVar[bool] = False

    @pytest.fixture
    def place(self, gcs: GcsServer, root: str, opened: Callable[..., Place]) -> Place:
        return opened("gs", root, gcs.environment, PastGcs(gcs.url))


class TestAzure(MarkedStoreTests):
    lists_empty: ClassVar[bool] = False
    # Azure takes a backslash for a slash
    names: ClassVar[tuple[str, ...]] = tuple(name for name in NAMES if "\\" not in name)

    @pytest.fixture
    def place(self, azure: AzureServer, root: str, opened: Callable[..., Place]) -> Place:
        return opened("abfs", root, azure.environment, PastAzure(azure))

    @pytest.mark.parametrize("length", [10, 3000])
    def test_a_copy_is_of_one_version(self, place: Place, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """What had another size when it was opened than when it was looked at was cut, or mixed with other bytes."""
        place.put(place.at("file"), b"1" * 1000)
        data, opened = content(length), ObjectStore.open

        def replaced(store: ObjectStore, path: str, version: str = "") -> Reader:
            place.put(path, data)
            return opened(store, path, version)

        monkeypatch.setattr(ObjectStore, "open", replaced)
        place.store.copy(place.at("file"), place.at("copy"))
        assert place.get(place.at("copy")) == data
