"""What is in object stores, by clients of their makers: past the code under test."""

from typing import Any

from tests.support.azure_server import KEY, AzureServer
from tests.support.s3_client import s3_client
from tests.support.s3_server import SECRET_KEY


class PastS3:
    """What is in an S3 server, by AWS's own client."""

    secrets = (SECRET_KEY,)

    def __init__(self, url: str, **settings: Any) -> None:
        self._client = s3_client(url, **settings)

    def put(self, path: str, data: bytes) -> None:
        self._client.put_object(**_place(path), Body=data)

    def get(self, path: str) -> bytes | None:
        try:
            return bytes(self._client.get_object(**_place(path))["Body"].read())
        except self._client.exceptions.NoSuchKey:
            return None

    def names(self, directory: str) -> list[str]:
        bucket, _, prefix = directory.partition("/")
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        return [f"{bucket}/{each['Key']}" for page in pages for each in page.get("Contents", [])]

    def mark(self, path: str) -> None:
        self.put(f"{path}/", b"")

    def upload(self, path: str) -> str:
        upload_id = str(self._client.create_multipart_upload(**_place(path))["UploadId"])
        self._client.upload_part(**_place(path), UploadId=upload_id, PartNumber=1, Body=b"a part")
        return upload_id


class PastGcs(PastS3):
    """The server is one for S3 underneath; it has no way to list uploads that were abandoned."""

    upload = None  # type: ignore[assignment]


class PastAzure:
    """What is in a storage account, by Azure's own client."""

    secrets = (KEY,)
    upload = None

    def __init__(self, server: AzureServer) -> None:
        self._client = server.client()

    def put(self, path: str, data: bytes, **more: Any) -> None:
        self._blob(path).upload_blob(data, overwrite=True, **more)

    def get(self, path: str) -> bytes | None:
        blob = self._blob(path)
        return bytes(blob.download_blob().readall()) if blob.exists() else None

    def names(self, directory: str) -> list[str]:
        container, _, prefix = directory.partition("/")
        found = self._client.get_container_client(container).list_blob_names(name_starts_with=f"{prefix}/")
        return [f"{container}/{name}" for name in found]

    def mark(self, path: str) -> None:
        # as an account with a hierarchical namespace has it
        self.put(path, b"", metadata={"hdi_isfolder": "true"})

    def _blob(self, path: str) -> Any:
        container, _, name = path.partition("/")
        return self._client.get_blob_client(container, name)


def _place(path: str) -> dict[str, str]:
    bucket, _, key = path.partition("/")
    return {"Bucket": bucket, "Key": key}
