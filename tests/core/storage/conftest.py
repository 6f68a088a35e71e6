"""Where leases are, in the tests of leases and of those who watch them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.storage.urls import Location, parse_url


@pytest.fixture
def local(tmp_path: Path) -> Location:
    return parse_url(str(tmp_path / "state" / "leases"))


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    monkeypatch.setattr("reshard.core.storage.remote_lease.RENEWAL_SECONDS", 0.05)
    location = parse_url("memory://bucket/leases")
    yield location
    location.fs.store.clear()
    location.fs.pseudo_dirs[:] = [""]


@pytest.fixture(params=["local", "remote"])
def directory(request: pytest.FixtureRequest) -> Location:
    location: Location = request.getfixturevalue(request.param)
    return location
