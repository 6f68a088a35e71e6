"""Directories of files and of leases, on a local file system and on a storage without locks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.storage.urls import Location, parse_url
from tests.support.leases import DEAD_AFTER_SECONDS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.s3_client import shared_descriptions
from tests.support.small_files import CONTENT, forget_memory


@pytest.fixture(scope="session", autouse=True)
def _shared_descriptions() -> Iterator[None]:
    with shared_descriptions():
        yield


@pytest.fixture
def local(tmp_path: Path) -> Location:
    return parse_url(str(tmp_path / "state" / "leases"))


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease.RENEWAL_SECONDS", 0.05)
    # a living one is renewed in time, however long it takes here
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease.IN_DOUBT_AFTER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._LAST_RENEWALS_SECONDS", PATIENCE_SECONDS)
    location = parse_url("memory://bucket/leases")
    yield location
    forget_memory()


@pytest.fixture
def quickly_dead(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose remote leases are all dead, except the test's own."""
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", DEAD_AFTER_SECONDS)


@pytest.fixture(params=["local", "remote"])
def directory(request: pytest.FixtureRequest) -> Location:
    location: Location = request.getfixturevalue(request.param)
    return location


@pytest.fixture
def file(folder: Location) -> Location:
    location = folder.child("content.bin")
    folder.store.put(location.path, CONTENT)
    return location
