"""Nothing of this machine's settings counts here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.storage.stores import forget_stores
from tests.support.canned_server import CannedServer, canned_server

_VARIABLES = ("AWS_", "OBS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR", "FSSPEC_", "SSL_CERT")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A home directory without any configuration, and an environment without variables of clouds and proxies."""
    for name in [*os.environ]:
        if name.upper().endswith(("_PROXY", "CA_BUNDLE")) or name.startswith(_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # the metadata service of a cloud: nothing listens there
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:1/identity")
    for variable in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        monkeypatch.setenv(variable, "127.0.0.1:1")
    monkeypatch.setattr("fsspec.config.conf", {})
    forget_stores()
    yield tmp_path
    forget_stores()


@pytest.fixture
def server() -> Iterator[CannedServer]:
    """Gives prepared answers."""
    with canned_server() as running:
        yield running
