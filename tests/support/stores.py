"""Object stores under test, and what is in them by a client of its own."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reshard.core.storage.stores import forget_stores
from tests.support.s3_client import s3_client
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server
from tests.support.s3_traffic import Exchange

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


def forget_connections() -> None:
    """Servers come and go, and connections to them with them."""
    forget_stores()


def options_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a store's options in a file, which are nowhere else from here on."""
    options = tmp_path / "options.json"
    options.write_text(
        json.dumps({"endpoint_url": store.proxy.url, "key": store.server.access_key, "secret": store.server.secret_key})
    )
    for name in store.proxy.environment:
        monkeypatch.delenv(name)
    forget_connections()
    return f"file:{options}"


def content_of(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def stored(store: Store, path: str = "file.bin") -> bytes | None:
    """What is there, by a client of its own that goes past the proxy."""
    client = s3_client(store.server.url)
    try:
        body: bytes = client.get_object(Bucket=BUCKET, Key=f"{store.prefix}/{path}")["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    return body


def unfinished_uploads(store: Store) -> list[str]:
    """Keys of what was begun to be sent and neither completed nor given up."""
    client = s3_client(store.server.url)
    try:
        page = client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{store.prefix}/")
    except client.exceptions.NoSuchUpload:  # the server's way to say that there are none in all of the bucket
        return []
    return [upload["Key"] for upload in page.get("Uploads", [])]


def of_operation(store: Store, operation: str) -> list[Exchange]:
    return [each for each in store.proxy.exchanges() if each.call.operation == operation]
