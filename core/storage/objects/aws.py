"""What the tools of AWS are configured with on this machine, and what only AWS's own client can ask a server for.

Settings are those of botocore: variables of the environment win over the configuration file. botocore and boto3 are
loaded only where there is such a file, or where no keys are at hand; and for uploads that were abandoned, and copies of
large objects.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reshard.core.runtime.records import Record
from reshard.core.storage.store import AbandonedUpload

if TYPE_CHECKING:
    from reshard.core.storage.objects.s3 import S3Settings

ANY_REGION = "us-east-1"
"""The region for which is signed if none is configured."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_COPIED_PART_BYTES = 512 * 2**20
_COPIES_AT_ONCE = 8


class Configuration(Record):
    """What the environment and AWS's configuration file say.

    Attributes:
        endpoints: where an endpoint may stand, and what stands there.
        addressing: the addressing style; empty if none is configured.
        bundle: path of a bundle of certificates; empty if none is configured.
    """

    region: str
    endpoints: tuple[tuple[str, str | None], ...]
    addressing: str
    bundle: str
    keys: tuple[str, str, str | None] | None


def configuration(profile: str | None) -> Configuration:
    """Return what is configured for a profile; None: the one that the environment names, or the default one.

    Raises:
        ValueError: the profile, or the configuration file, cannot be used.
    """
    variables = os.environ
    of_profile = _of_profile(profile) if profile or variables.get("AWS_PROFILE") or _has_files() else {}
    of_s3 = of_profile.get("s3") or {}
    key, secret = variables.get("AWS_ACCESS_KEY_ID"), variables.get("AWS_SECRET_ACCESS_KEY")
    return Configuration(
        region=variables.get("AWS_DEFAULT_REGION") or of_profile.get("region") or "",
        endpoints=(
            ("AWS_ENDPOINT_URL_S3", variables.get("AWS_ENDPOINT_URL_S3")),
            ("AWS_ENDPOINT_URL", variables.get("AWS_ENDPOINT_URL")),
            ("endpoint_url in the configuration of AWS", of_profile.get("endpoint_url")),
        ),
        addressing=of_s3.get("addressing_style") or "",
        bundle=variables.get("AWS_CA_BUNDLE")
        or variables.get("REQUESTS_CA_BUNDLE")
        or of_profile.get("ca_bundle")
        or "",
        # a profile that is named in the options wins over keys of the environment
        keys=(key, secret, variables.get("AWS_SESSION_TOKEN")) if key and secret and not profile else None,
    )


def _has_files() -> bool:
    paths = [os.environ.get(name) or os.path.expanduser(path) for name, path in _FILES.items()]
    return any(os.path.exists(path) and path != os.devnull for path in paths)


def _of_profile(profile: str | None) -> dict[str, Any]:
    """Return the settings of a profile, with the endpoint that it has for S3."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session(profile=profile)
    try:
        own, services = dict(session.get_scoped_config()), session.full_config.get("services", {})
    except BotoCoreError as error:
        raise ValueError(f"the configuration of AWS: {error}") from error
    of_s3 = services.get(own.get("services"), {}).get("s3", {})
    return own | {"endpoint_url": of_s3.get("endpoint_url") or own.get("endpoint_url")}


def domain(region: str) -> str:
    """Return the domain of AWS's services in a region."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def credential_provider(profile: str | None) -> Any:
    """Return where obstore gets keys, again and again: profiles, single sign-on, roles, metadata services.

    Raises:
        ValueError: none are to be found.
    """
    from boto3.session import Session
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = Session(profile_name=profile)
        if session.get_credentials() is None:
            raise NoCredentialsError
        return Boto3CredentialProvider(session)
    except BotoCoreError as error:
        raise UnusableCredentialsError(str(error)) from error


class NoCredentialsError(OSError):
    """There are no keys anywhere."""


class UnusableCredentialsError(OSError):
    """The keys that are configured cannot be used."""


class Admin:
    """AWS's own client, for what obstore has no request for."""

    def __init__(self, settings: "S3Settings") -> None:
        from boto3.session import Session
        from botocore import UNSIGNED
        from botocore.config import Config

        key, secret, token = settings.keys or (None, None, None)
        config = Config(
            connect_timeout=settings.connect_seconds,
            read_timeout=settings.read_seconds,
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": "virtual" if settings.is_virtual else "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version=UNSIGNED if settings.is_anonymous else None,
        )
        self._client: Any = Session(profile_name=settings.profile).client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=config,
            verify=settings.checks_certificates,
        )

    def copy(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Copy an object (bucket, key) of any size, in parts, several at once; aborted if it fails."""
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(
            multipart_threshold=_COPIED_PART_BYTES,
            multipart_chunksize=_COPIED_PART_BYTES,
            max_concurrency=_COPIES_AT_ONCE,
        )
        (bucket, key), (to_bucket, to_key) = source, target
        self._client.copy({"Bucket": bucket, "Key": key}, to_bucket, to_key, Config=config)

    def abandoned(self, bucket: str, prefix: str) -> Sequence[AbandonedUpload]:
        """List uploads of keys that begin so."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        try:
            found = [upload for page in pages for upload in page.get("Uploads", [])]
        except self._client.exceptions.NoSuchUpload:  # some servers' answer if there are none
            return []
        return [self._described(bucket, upload) for upload in found]

    def _described(self, bucket: str, upload: dict[str, Any]) -> AbandonedUpload:
        where = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        pages = self._client.get_paginator("list_parts").paginate(**where)
        size_bytes = sum(part["Size"] for page in pages for part in page.get("Parts", []))
        return AbandonedUpload(f"{bucket}/{upload['Key']}", upload["UploadId"], upload.get("Initiated"), size_bytes)

    def abort(self, bucket: str, key: str, upload_id: str) -> None:
        """Abort an upload, if it is still there."""
        with suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
