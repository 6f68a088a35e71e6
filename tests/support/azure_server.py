"""A real server of Azure's Blob Storage: Azurite, Microsoft's emulator, which checks signatures and judges conditions.

`npm ci --prefix tests/support/azurite` installs it, as `.ci/run` does.
"""

import base64
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.servers import server_process

ACCOUNT = "reshardtests"
KEY = base64.b64encode(b"the key of the account for tests").decode()
AZURITE = Path(__file__).with_name("azurite") / "node_modules" / ".bin" / "azurite-blob"
NO_AZURITE = "there is no Azurite here: npm ci --ignore-scripts --prefix tests/support/azurite"
_FLAGS = ("--blobPort=0", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck")
_STARTED = re.compile(r"successfully listens on (http://127\.0\.0\.1:[0-9]+)")


@dataclass(frozen=True)
class AzureServer:
    """A running server, with an empty container."""

    url: str

    @property
    def endpoint(self) -> str:
        """The account's."""
        return f"{self.url}/{ACCOUNT}"

    @property
    def connection_string(self) -> str:
        """The account's, as Azure's portal shows it."""
        return connection_string(self.endpoint)

    @property
    def environment(self) -> dict[str, str]:
        """What makes clients talk to it."""
        return {"AZURE_STORAGE_CONNECTION_STRING": self.connection_string}

    def signature(self, container: str, letters: str) -> str:
        """A shared access signature that allows what the letters say, for an hour."""
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        return generate_container_sas(
            ACCOUNT,
            container,
            account_key=KEY,
            permission=ContainerSasPermissions.from_string(letters),
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )

    def client(self) -> Any:
        """Azure's own client of the account."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(self.endpoint, credential={"account_name": ACCOUNT, "account_key": KEY}, retry_total=0)


def connection_string(endpoint: str, key: str = KEY) -> str:
    """Endpoint and key of an account in one text."""
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint};"


@contextmanager
def azure_server(directory: Path, container: str) -> Iterator[AzureServer]:
    """Runs a server on a free port for the time of the block; its log is in the directory."""
    assert AZURITE.exists(), NO_AZURITE
    environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with server_process([AZURITE, *_FLAGS], _STARTED, directory / "azurite.log", environment) as started:
        server = AzureServer(started[1])
        server.client().create_container(container)
        yield server
