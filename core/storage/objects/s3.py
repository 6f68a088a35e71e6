"""Amazon S3, and the servers that speak its protocol, Huawei's OBS among them.

The options are named as s3fs names them. Keys come from them, from the environment, or from wherever the tools of AWS
find them (profiles, single sign-on, roles, metadata services): that is for boto3 to say, which is otherwise loaded only
for what obstore has no request for.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from reshard.core.runtime.records import Record
from reshard.core.storage.objects import aws, obs
from reshard.core.storage.objects.endpoints import checked_endpoint, server_of
from reshard.core.storage.objects.options import check_kinds, check_known
from reshard.core.storage.objects.service import CONNECT_SECONDS, READ_SECONDS, Service, client_options
from reshard.core.storage.store import AbandonedUpload

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client
    from obstore.store import RetryConfig

Options = Mapping[str, Any]
Keys = tuple[str, str, str | None]
"""Key, secret and token."""

_OPTIONS = (
    *("endpoint_url", "key", "secret", "token", "profile", "anon", "client_kwargs", "config_kwargs"),
    *("requester_pays", "s3_additional_kwargs"),
)
_CLIENT_OPTIONS = ("region_name", "endpoint_url", "verify")
_CONFIG_OPTIONS = ("connect_timeout", "read_timeout", "s3")
_ADDRESSING = ("auto", "path", "virtual")
_ENCRYPTION = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
"""Name in `s3_additional_kwargs` -> obstore's name."""


class S3Settings(Record):
    """Everything that clients of a server are made with.

    Attributes:
        keys: None if boto3 has to find them, or none are needed.
        is_virtual: the bucket is a part of the host's name.
        certificates: authorities to trust besides the machine's, as PEM.
        encryption: headers of new objects, by obstore's names.
    """

    protocol: str
    endpoint: str
    region: str
    is_virtual: bool = False
    keys: Keys | None = None
    profile: str | None = None
    is_anonymous: bool = False
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    certificates: str = ""
    checks_certificates: bool = True
    requester_pays: bool = False
    encryption: tuple[tuple[str, str | bool], ...] = ()

    def __repr__(self) -> str:
        return f"S3Settings(protocol={self.protocol!r}, endpoint={self.endpoint!r})"  # no secret in messages and logs


def s3_settings(options: Options) -> S3Settings:
    """Return the settings of `s3://`: options, then the environment, then the configuration of AWS's tools.

    Raises:
        ValueError: an option is unknown, or has an impossible value, which the message does not contain.
    """
    _check(options)
    client = options.get("client_kwargs") or {}
    configured = aws.configuration(options.get("profile"))
    region = client.get("region_name") or configured.region or aws.ANY_REGION
    endpoint = checked_endpoint(
        ("endpoint_url", options.get("endpoint_url")),
        ("client_kwargs.endpoint_url", client.get("endpoint_url")),
        *configured.endpoints,
    )
    return S3Settings(
        protocol="s3",
        endpoint=endpoint or f"https://s3.{region}.{aws.domain(region)}",
        region=region,
        is_virtual=_is_virtual(options, configured.addressing or ("path" if endpoint else "virtual")),
        keys=None if options.get("anon") else _given_keys(options) or configured.keys,
        profile=options.get("profile"),
        **_common(options, configured.bundle),
    )


def obs_settings(options: Options) -> S3Settings:
    """Return the settings of `obs://`; see `reshard.core.storage.objects.obs`.

    Raises:
        ValueError: the endpoint or the keys are missing; or as `s3_settings`.
    """
    _check(options)
    client = options.get("client_kwargs") or {}
    endpoint, host = obs.endpoint_of(options.get("endpoint_url") or client.get("endpoint_url"))
    return S3Settings(
        protocol="obs",
        endpoint=endpoint,
        region=client.get("region_name") or obs.region_of(host),
        is_virtual=_is_virtual(options, obs.addressing_of(host)),
        keys=None if options.get("anon") else _given_keys(options) or obs.keys_of_environment(),
        **_common(options, ""),
    )


class S3Service(Service):
    """A server of S3's protocol."""

    keeps_parts: ClassVar[bool] = True

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self.protocol = settings.protocol
        self._admin: aws.Admin | None = None

    @property
    def address(self) -> str:
        """The endpoint."""
        return self._settings.endpoint

    def server(self) -> object:
        """Return host and port; clouds where bucket names are unique are one server each."""
        return server_of(self._settings.endpoint)

    def client(self, bucket: str, retry_config: "RetryConfig") -> "Client":
        """Make a client of a bucket."""
        from obstore.store import S3Store

        settings = self._settings
        endpoint = urlsplit(settings.endpoint)
        host = f"{bucket}.{endpoint.netloc}" if settings.is_virtual else endpoint.netloc
        encryption: Any = dict(settings.encryption)
        certificates: Any = {"root_certificate": settings.certificates} if settings.certificates else {}
        credentials: Any = {} if settings.is_anonymous else {"credential_provider": self._credentials()}
        return S3Store(
            bucket,
            # the longer name's value wins, and would come from the environment
            aws_endpoint_url_s3=f"{endpoint.scheme}://{host}{endpoint.path.rstrip('/')}",
            region=settings.region,
            virtual_hosted_style_request=settings.is_virtual,
            # what TLS protects needs no checksum in the signature
            unsigned_payload=endpoint.scheme == "https",
            skip_signature=settings.is_anonymous,
            request_payer=settings.requester_pays,
            client_options=client_options(
                settings.connect_seconds,
                settings.read_seconds,
                allow_invalid_certificates=not settings.checks_certificates,
                **certificates,
            ),
            retry_config=retry_config,
            **credentials,
            config=encryption,
        )

    def copy_large(self, source: tuple[str, str], target: tuple[str, str]) -> bool:
        """Let the server copy an object, part by part."""
        self._administrator().copy(source, target)
        return True

    def abandoned(self, bucket: str, prefix: str) -> Sequence[AbandonedUpload]:
        """List uploads that were neither completed nor aborted."""
        return self._administrator().abandoned(bucket, prefix)

    def abort(self, bucket: str, key: str, upload_id: str) -> None:
        """Abort an upload."""
        self._administrator().abort(bucket, key, upload_id)

    def _credentials(self) -> Any:
        if self._settings.keys is None:
            return aws.credential_provider(self._settings.profile)
        key, secret, token = self._settings.keys
        return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}

    def _administrator(self) -> aws.Admin:
        if self._admin is None:
            self._admin = aws.Admin(self._settings)
        return self._admin


def _check(options: Options) -> None:
    """Check names and kinds of options."""
    check_known(options, _OPTIONS)
    check_kinds(
        {name: options.get(name) for name in ("endpoint_url", "key", "secret", "token", "profile")}, str, "a text"
    )
    objects = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
    check_kinds({name: options.get(name) for name in objects}, Mapping, "an object of options")
    client, config, writing = (options.get(name) or {} for name in objects)
    check_known(client, _CLIENT_OPTIONS, "client_kwargs")
    check_kinds({f"client_kwargs.{name}": client.get(name) for name in ("region_name", "endpoint_url")}, str, "a text")
    check_known(config, _CONFIG_OPTIONS, "config_kwargs")
    times = ("connect_timeout", "read_timeout")
    check_kinds({f"config_kwargs.{name}": config.get(name) for name in times}, (int, float), "a number of seconds")
    check_kinds({"config_kwargs.s3": config.get("s3")}, Mapping, "an object of options")
    check_known(config.get("s3") or {}, ("addressing_style",), "config_kwargs.s3")
    check_known(writing, _ENCRYPTION, "s3_additional_kwargs")
    if bool(options.get("key")) != bool(options.get("secret")):
        raise ValueError("key and secret must be given together")


def _given_keys(options: Options) -> Keys | None:
    key, secret = options.get("key"), options.get("secret")
    return (key, secret, options.get("token")) if key and secret else None


def _is_virtual(options: Options, usual: str) -> bool:
    style = ((options.get("config_kwargs") or {}).get("s3") or {}).get("addressing_style") or usual
    if style not in _ADDRESSING:
        raise ValueError(
            f"config_kwargs.s3.addressing_style: must be {', '.join(_ADDRESSING[:-1])} or {_ADDRESSING[-1]}"
        )
    return bool(style == "virtual" or (style == "auto" and usual == "virtual"))


def _common(options: Options, bundle: str) -> dict[str, Any]:
    """Return the settings that both protocols take from options alone."""
    config = options.get("config_kwargs") or {}
    verify = (options.get("client_kwargs") or {}).get("verify", bundle or True)
    writing = options.get("s3_additional_kwargs") or {}
    return {
        "is_anonymous": bool(options.get("anon")),
        "connect_seconds": float(config.get("connect_timeout") or CONNECT_SECONDS),
        "read_seconds": float(config.get("read_timeout") or READ_SECONDS),
        "certificates": _read_certificates(verify) if isinstance(verify, str) else "",
        "checks_certificates": verify is not False,
        "requester_pays": bool(options.get("requester_pays")),
        "encryption": tuple((_ENCRYPTION[name], value) for name, value in sorted(writing.items())),
    }


def _read_certificates(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ValueError(f"the bundle of certificates {path}: {error}") from error
