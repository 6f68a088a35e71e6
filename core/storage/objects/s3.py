"""Amazon S3, and the servers that speak its protocol, Huawei's OBS among them.

Keys come from storage options, from the environment, or from wherever the tools of AWS find them (profiles, single
sign-on, roles, metadata services): that is for botocore to say, which is otherwise loaded only for what obstore has no
request for.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from reshard.core.runtime.records import Record
from reshard.core.storage.endpoints import checked_endpoint, server_of
from reshard.core.storage.objects import aws, aws_configuration, obs
from reshard.core.storage.objects.credentials import CredentialProvider
from reshard.core.storage.objects.s3_options import (
    ADDRESSING,
    Keys,
    Options,
    S3Options,
    obstore_encryption,
    parse_options,
)
from reshard.core.storage.objects.service import Service, client_options
from reshard.core.storage.option_checks import check_choice
from reshard.core.storage.store import AbandonedUpload

if TYPE_CHECKING:
    import ssl

    from obstore.store import ObjectStore as Client
    from obstore.store import RetryConfig

_EXPRESS = "--x-s3"
"""The end of names of S3's directory buckets, which want another kind of credentials."""
_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""A bucket's name that can be a part of a host's: with a dot in it no certificate would match."""
_REGION = re.compile(r"[A-Za-z0-9-]*")
_NO_REGION = "aws-global"
"""botocore's name for where requests go without a region."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class S3Settings(Record):
    """Everything that clients of a server are made with.

    Attributes:
        endpoint: empty for AWS's own, whose names begin with `host`.
        region: empty if each bucket's has to be asked for.
        addressing: "virtual" if the bucket is a part of the host's name, else "path".
        keys: None if botocore has to find them, in the profile if there is one; or none are needed.
        bundle: path of a file of certificates to trust besides the machine's; empty if there is none.
        encryption: headers of new objects, by S3's names.
    """

    protocol: str
    endpoint: str
    region: str
    addressing: str
    keys: Keys | None
    profile: str | None
    bundle: str
    is_anonymous: bool
    checks_certificates: bool
    connect_seconds: float
    read_seconds: float
    requester_pays: bool
    encryption: tuple[tuple[str, str | bool], ...]
    host: str = "s3"

    def __repr__(self) -> str:
        return f"S3Settings(protocol={self.protocol!r}, endpoint={self.endpoint!r})"  # no secret in messages and logs


def s3_settings(options: Options) -> S3Settings:
    """Return the settings of `s3://`: options, then the environment, then the configuration of AWS's tools.

    Raises:
        ValueError: an option is unknown, or has an impossible value, which the message does not contain.
    """
    given = parse_options(options)
    configured = aws_configuration.configuration(given.profile)
    if configured.addressing:
        check_choice("addressing_style in the configuration of AWS", configured.addressing, ADDRESSING)
    region = (given.region or configured.region).replace(_NO_REGION, "")
    endpoint = checked_endpoint(*given.endpoints, *configured.endpoints)
    return _settings(
        "s3",
        given,
        endpoint,
        keys=given.keys or configured.keys,
        region=region or (aws_configuration.ANY_REGION if endpoint else ""),
        usual_addressing=configured.addressing or ("path" if endpoint else "virtual"),
        bundle=configured.bundle,
        host=configured.host,
    )


def obs_settings(options: Options) -> S3Settings:
    """Return the settings of `obs://`; see `reshard.core.storage.objects.obs`.

    Raises:
        ValueError: the endpoint or the keys are missing; or as `s3_settings`.
    """
    given = parse_options(options)
    if given.profile:
        raise ValueError("profile: profiles are AWS's, and not used for obs://")
    endpoint, host = obs.endpoint_of(*given.endpoints)
    return _settings(
        "obs",
        given,
        endpoint,
        keys=given.keys or (None if given.is_anonymous else obs.keys_of_environment()),
        region=given.region or obs.region_of(host),
        usual_addressing=obs.addressing_of(host),
    )


def _settings(
    protocol: str,
    given: S3Options,
    endpoint: str,
    *,
    keys: Keys | None,
    region: str,
    usual_addressing: str,
    bundle: str = "",
    host: str = "s3",
) -> S3Settings:
    if not _REGION.fullmatch(region):
        raise ValueError("the region that is configured cannot be one")
    style = given.addressing.replace("auto", "") or usual_addressing
    return S3Settings(
        protocol=protocol,
        endpoint=endpoint,
        region=region,
        addressing="path" if style == "path" or (style == "auto" and endpoint) else "virtual",
        keys=None if given.is_anonymous else keys,
        profile=None if given.is_anonymous or keys else given.profile,
        bundle=(given.bundle or bundle) if given.checks_certificates else "",
        is_anonymous=given.is_anonymous,
        checks_certificates=given.checks_certificates,
        connect_seconds=given.connect_seconds,
        read_seconds=given.read_seconds,
        requester_pays=given.requester_pays,
        encryption=given.encryption,
        host=host,
    )


class S3Service(Service):
    """A server of S3's protocol.

    Raises:
        ValueError: the bundle of certificates cannot be used.
    """

    bucket_names: ClassVar[re.Pattern[str]] = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
    """Those of old buckets, and of other servers', may have more than lowercase letters."""
    keeps_parts: ClassVar[bool] = True
    max_copied_bytes: ClassVar[int] = aws.COPIED_PART_BYTES

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._certificates = _read_certificates(settings.bundle) if settings.bundle else b""
        self._find_keys = CredentialProvider(settings.profile)
        self._regions: dict[str, str] = {}
        self._aws_clients: dict[str, aws.AwsClient] = {}
        self.protocol = settings.protocol
        self.certificates_word = "client_kwargs.verify" if self.protocol == "obs" else "AWS_CA_BUNDLE"

    @property
    def address(self) -> str:
        """The endpoint."""
        return self._endpoint(self._settings.region or aws_configuration.ANY_REGION)

    def server(self) -> object:
        """Return host and port; clouds where bucket names are unique are one server each."""
        return server_of(self.address)

    def check_bucket(self, bucket: str) -> None:
        """Check that a bucket can have such a name, and is of a kind that obstore knows."""
        super().check_bucket(bucket)
        if bucket.endswith(_EXPRESS):
            raise ValueError("directory buckets of S3 Express are not supported")

    def client(self, bucket: str, retry_config: "RetryConfig", sending_seconds: float = 0) -> "Client":
        """Make a client of a bucket."""
        from obstore.store import S3Store

        settings = self._settings
        region = self._region_of(bucket)
        endpoint = urlsplit(self._endpoint(region))
        is_virtual = settings.addressing == "virtual" and _LABEL.fullmatch(bucket) is not None
        host = f"{bucket}.{endpoint.netloc}" if is_virtual else endpoint.netloc
        certificates: Any = {"root_certificate": self._certificates} if self._certificates else {}
        credentials: Any = {} if settings.is_anonymous else {"credential_provider": self._credentials()}
        encryption: Any = obstore_encryption(settings.encryption)
        return S3Store(
            bucket,
            # all that obstore would take from variables of its own otherwise; of this one the longer name wins
            aws_endpoint_url_s3=f"{endpoint.scheme}://{host}{endpoint.path.rstrip('/')}",
            region=region,
            virtual_hosted_style_request=is_virtual,
            # what TLS protects needs no checksum in the signature
            unsigned_payload=endpoint.scheme == "https",
            skip_signature=settings.is_anonymous,
            request_payer=settings.requester_pays,
            s3_express=False,
            conditional_put="etag",
            # one object at a time: its refusal is the answer's status, and not every server knows the other way
            disable_bulk_delete=True,
            client_options=client_options(
                settings.connect_seconds,
                settings.read_seconds + sending_seconds,
                allow_invalid_certificates=not settings.checks_certificates,
                **certificates,
            ),
            retry_config=retry_config,
            **credentials,
            config=encryption,
        )

    def copy_large(self, source: tuple[str, str], target: tuple[str, str]) -> bool:
        """Let the server copy an object, part by part."""
        self._aws_client(target[0]).copy(source, target)
        return True

    def abandoned(self, bucket: str, prefix: str) -> Sequence[AbandonedUpload]:
        """List uploads that were neither completed nor aborted."""
        return self._aws_client(bucket).abandoned(bucket, prefix)

    def abort(self, bucket: str, key: str, upload_id: str) -> None:
        """Abort an upload."""
        self._aws_client(bucket).abort(bucket, key, upload_id)

    def _endpoint(self, region: str) -> str:
        return self._settings.endpoint or aws_configuration.endpoint(self._settings.host, region)

    def _region_of(self, bucket: str) -> str:
        if self._settings.region:
            return self._settings.region
        if bucket not in self._regions:
            self._regions[bucket] = aws_configuration.region_of(self.address, bucket, self._context())
        return self._regions[bucket]

    def _context(self) -> "ssl.SSLContext":
        import ssl

        context = ssl.create_default_context(cadata=self._certificates.decode() or None)
        context.load_default_certs()
        if not self._settings.checks_certificates:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _credentials(self) -> Any:
        if self._settings.keys is None:
            return self._find_keys
        key, secret, token = self._settings.keys
        return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}

    def _aws_client(self, bucket: str) -> aws.AwsClient:
        region = self._region_of(bucket)
        if region not in self._aws_clients:
            self._aws_clients[region] = aws.AwsClient(self._settings, self._endpoint(region), region)
        return self._aws_clients[region]


def _read_certificates(path: str) -> bytes:
    """Return all certificates in a file, without the remarks between them."""
    import ssl

    try:
        with open(path, "rb") as file:
            found = b"\n".join(_CERTIFICATE.findall(file.read()))
    except OSError as error:
        raise ValueError(f"the bundle of certificates {path}: cannot be read: {error.strerror}") from error
    try:
        # the client does not say what is wrong with them
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found.decode())
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"the bundle of certificates {path}: holds no certificates in PEM, or damaged ones") from error
    return found
