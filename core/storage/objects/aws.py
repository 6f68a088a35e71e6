"""What the tools of AWS are configured with on this machine, and what only AWS's own client can ask a server for.

Settings are those of botocore: variables of the environment win over the configuration file. botocore and boto3 are
loaded only where there is such a file, or where no keys are at hand; and for uploads that were abandoned, and copies of
large objects.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from reshard.core.runtime.records import Record
from reshard.core.storage.objects.boto_errors import is_passing
from reshard.core.storage.store import AbandonedUpload
from reshard.core.text.secrets import scrubbed

if TYPE_CHECKING:
    from obstore.store import S3Credential

    from reshard.core.storage.objects.s3 import S3Settings

ANY_REGION = "us-east-1"
"""The region for which is signed if none is configured."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_PROFILES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_TOKENS = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
_CLIENT_ASKS_BEFORE = timedelta(minutes=5)
"""obstore asks for keys again when theirs expire within this time."""
_ASKED_EVERY = timedelta(seconds=10)
"""botocore knows when keys that expire have to be renewed, as long as it is asked."""
_REGION_SECONDS = 10
_COPIED_PART_BYTES = 512 * 2**20
_COPIES_AT_ONCE = 8
_NO_FILES: Any = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
"""botocore's variables where nothing of this machine counts but what the settings say."""
NO_CREDENTIALS = (
    "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
    "or name storage options that have key and secret"
)


class Configuration(Record):
    """What the environment and AWS's configuration file say.

    Attributes:
        endpoints: where an endpoint may stand, and what stands there.
        host: the first part of the names of AWS's own hosts.
        addressing: the addressing style; empty if none is configured.
        bundle: path of a bundle of certificates; empty if none is configured.
    """

    region: str
    endpoints: tuple[tuple[str, str | None], ...]
    host: str
    addressing: str
    bundle: str
    keys: tuple[str, str, str | None] | None

    def __repr__(self) -> str:
        return f"Configuration(region={self.region!r})"  # no secret in messages and logs


def configuration(profile: str | None) -> Configuration:
    """Return what is configured for a profile; None: the one that the environment names, or the default one.

    Raises:
        ValueError: the profile, or the configuration file, cannot be used.
    """
    variables = os.environ
    own = _of_profile(profile)
    of_s3 = own.get("s3") or {}
    of_s3 = of_s3 if isinstance(of_s3, Mapping) else {}
    fips = _is_on(variables.get("AWS_USE_FIPS_ENDPOINT") or own.get("use_fips_endpoint"))
    dualstack = _is_on(
        variables.get("AWS_USE_DUALSTACK_ENDPOINT")
        or own.get("use_dualstack_endpoint")
        or of_s3.get("use_dualstack_endpoint")
    )
    ignored = variables.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or own.get("ignore_configured_endpoint_urls")
    return Configuration(
        region=variables.get("AWS_DEFAULT_REGION") or own.get("region") or "",
        endpoints=()
        if _is_on(ignored)
        else (
            ("AWS_ENDPOINT_URL_S3", variables.get("AWS_ENDPOINT_URL_S3")),
            ("AWS_ENDPOINT_URL", variables.get("AWS_ENDPOINT_URL")),
            ("endpoint_url in the configuration of AWS", own.get("endpoint_url")),
        ),
        host=f"s3{'-fips' if fips else ''}{'.dualstack' if dualstack else ''}",
        addressing=of_s3.get("addressing_style") or "",
        bundle=variables.get("AWS_CA_BUNDLE") or own.get("ca_bundle") or variables.get("REQUESTS_CA_BUNDLE") or "",
        # a profile that is named in the options wins over keys of the environment
        keys=None if profile else _keys_of_environment(),
    )


def _is_on(text: str | None) -> bool:
    return (text or "").lower() == "true"


def _keys_of_environment() -> tuple[str, str, str | None] | None:
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not (key and secret):
        return None
    return key, secret, next(filter(None, map(os.environ.get, _TOKENS)), None)


def _files() -> tuple[tuple[str, int, int] | None, ...]:
    """Return path, time of the last change and size of each configuration file; None of one that is not there."""
    return tuple(_described(os.path.expanduser(os.environ.get(name) or path)) for name, path in _FILES.items())


def _described(path: str) -> tuple[str, int, int] | None:
    if path == os.devnull:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_mtime_ns, found.st_size


def _of_profile(profile: str | None) -> Mapping[str, Any]:
    """Return the settings of a profile, with the endpoint that it has for S3; nothing where there is no file."""
    named = profile or next(filter(None, map(os.environ.get, _PROFILES)), None)
    files = _files()
    return _read_profile(named, *files) if named or any(files) else {}


@lru_cache(maxsize=8)
def _read_profile(profile: str | None, *_files: object) -> Mapping[str, Any]:
    """Read the settings of a profile, again if the files have changed."""
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session(profile=profile)
    try:
        own = dict(session.get_scoped_config())
        endpoints = ConfiguredEndpointProvider(session.full_config, own, "s3", environ={})
        return own | {"endpoint_url": endpoints.provide()}
    except BotoCoreError as error:
        raise ValueError(f"the configuration of AWS: {error}") from error


def endpoint(host: str, region: str) -> str:
    """Return the endpoint of AWS in a region."""
    return f"https://{host}.{region}.{'amazonaws.com.cn' if region.startswith('cn-') else 'amazonaws.com'}"


def region_of(endpoint: str, bucket: str) -> str:
    """Return the region of a bucket, which AWS tells anybody who asks; the usual one if it does not."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    headers: Any = {}
    with suppress(OSError):
        try:
            with urlopen(Request(f"{endpoint}/{bucket}", method="HEAD"), timeout=_REGION_SECONDS) as answer:
                headers = answer.headers
        except HTTPError as error:  # denied, or elsewhere
            headers = error.headers
    return headers.get("x-amz-bucket-region") or ANY_REGION


class UnusableCredentialsError(Exception):
    """There are no keys anywhere, or they cannot be used."""


class CredentialProvider:
    """Tells obstore, again and again, the keys that botocore finds: profiles, single sign-on, roles, metadata."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._found: Any = None
        self._lock = Lock()

    def __call__(self) -> "S3Credential":
        """Return the keys as they are now.

        Raises:
            UnusableCredentialsError: there are none, or they cannot be used; the client repeats only class and text.
            ConnectionError: who keeps them does not answer.
        """
        try:
            return self._keys()
        except UnusableCredentialsError:
            raise
        except Exception as error:  # botocore raises what its many sources raise
            kind = ConnectionError if is_passing(error) else UnusableCredentialsError
            raise kind(f"the credentials cannot be used: {scrubbed(str(error))}") from None

    def _keys(self) -> "S3Credential":
        from botocore.credentials import RefreshableCredentials
        from botocore.session import Session

        with self._lock:
            self._found = self._found or Session(profile=self._profile).get_credentials()
        if self._found is None:
            raise UnusableCredentialsError(NO_CREDENTIALS)
        frozen = self._found.get_frozen_credentials()
        expires = isinstance(self._found, RefreshableCredentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CLIENT_ASKS_BEFORE + _ASKED_EVERY if expires else None,
        }


class Admin:
    """AWS's own client, for what obstore has no request for."""

    def __init__(self, settings: "S3Settings") -> None:
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
            endpoint_url=settings.endpoint,
            region_name=settings.region or ANY_REGION,
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
            multipart_threshold=_COPIED_PART_BYTES,
            multipart_chunksize=_COPIED_PART_BYTES,
            max_concurrency=_COPIES_AT_ONCE,
        )
        (bucket, key), (to_bucket, to_key) = source, target
        extra = self._payer | self._encryption
        self._client.copy({"Bucket": bucket, "Key": key}, to_bucket, to_key, ExtraArgs=extra, Config=config)

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
        where = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"], **self._payer}
        pages = self._client.get_paginator("list_parts").paginate(**where)
        size_bytes = sum(part["Size"] for page in pages for part in page.get("Parts", []))
        return AbandonedUpload(f"{bucket}/{upload['Key']}", upload["UploadId"], upload.get("Initiated"), size_bytes)

    def abort(self, bucket: str, key: str, upload_id: str) -> None:
        """Abort an upload, if it is still there."""
        with suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id, **self._payer)
