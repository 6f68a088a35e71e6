"""AWS's own client, for what obstore has no request for: abandoned uploads, and copies of large objects."""

import os
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from reshard.core.storage.store import AbandonedUpload
from reshard.core.storage.write_guard import check_claim

if TYPE_CHECKING:
    from reshard.core.storage.objects.s3 import S3Settings

COPIED_PART_BYTES = 512 * 2**20
"""Slow servers copy as much before an answer is no longer waited for."""
_COPIES_AT_ONCE = 8
_NO_FILES: Any = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
"""botocore's variables where nothing of this machine counts but what the settings say."""


class AwsClient:
    """The client, for the buckets of a region."""

    def __init__(self, settings: "S3Settings", endpoint: str, region: str) -> None:
        from boto3.session import Session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.session import Session as Configured

        key, secret, token = settings.keys or (None, None, None)
        is_complete = settings.keys or settings.is_anonymous
        session = Configured(_NO_FILES if is_complete else None, profile=settings.profile)
        config = Config(
            connect_timeout=settings.connect_seconds,
            read_timeout=settings.read_seconds,
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": settings.addressing},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version=UNSIGNED if settings.is_anonymous else None,
            use_dualstack_endpoint=False,
            use_fips_endpoint=False,
        )
        self._client: Any = Session(botocore_session=session).client(
            "s3",
            endpoint_url=endpoint,
            region_name=region,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=config,
            verify=settings.bundle or settings.checks_certificates,
        )
        self._payer = {"RequestPayer": "requester"} if settings.requester_pays else {}
        self._encryption = dict(settings.encryption)

    def copy(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Copy an object (bucket, key) of any size, in parts, several at once; aborted if it fails."""
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(
            multipart_threshold=COPIED_PART_BYTES,
            multipart_chunksize=COPIED_PART_BYTES,
            max_concurrency=_COPIES_AT_ONCE,
        )
        (bucket, key), (to_bucket, to_key) = source, target
        extra = self._payer | self._encryption
        context = copy_context()  # the client has threads of its own
        self._client.copy(
            {"Bucket": bucket, "Key": key},
            to_bucket,
            to_key,
            ExtraArgs=extra,
            Config=config,
            # after each part; if it raises, the copy is not completed
            Callback=lambda _: context.copy().run(check_claim),
        )

    def abandoned(self, bucket: str, prefix: str) -> Sequence[AbandonedUpload]:
        """List uploads of keys that begin so."""
        pages = self._client.get_paginator("list_multipart_uploads")
        try:
            found = [
                upload
                for page in pages.paginate(Bucket=bucket, Prefix=prefix, **self._payer)
                for upload in page.get("Uploads", [])
            ]
        except self._client.exceptions.NoSuchUpload:  # some servers' answer if there are none
            return []
        return [self._described(bucket, upload) for upload in found]

    def _described(self, bucket: str, upload: dict[str, Any]) -> AbandonedUpload:
        path, upload_id = f"{bucket}/{upload['Key']}", upload["UploadId"]
        return AbandonedUpload(path, upload_id, upload.get("Initiated"), self._size_bytes(bucket, upload))

    def _size_bytes(self, bucket: str, upload: dict[str, Any]) -> int:
        where = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"], **self._payer}
        try:
            pages = self._client.get_paginator("list_parts").paginate(**where)
            return sum(part["Size"] for page in pages for part in page.get("Parts", []))
        except self._client.exceptions.ClientError as error:
            # it may be aborted without the right to see its parts
            if error.response["Error"]["Code"] in ("AccessDenied", "NoSuchUpload"):
                return 0
            raise

    def abort(self, bucket: str, key: str, upload_id: str) -> None:
        """Abort an upload, if it is still there."""
        with suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id, **self._payer)
