"""Storage options of `s3://` and `obs://`, which are named as s3fs names them; other names are refused."""

from collections.abc import Mapping
from typing import Any

from reshard.core.runtime.records import Record
from reshard.core.storage.endpoints import CONNECT_SECONDS, READ_SECONDS
from reshard.core.storage.option_checks import check_choice, check_kinds, check_known, flag, seconds

Options = Mapping[str, Any]
Keys = tuple[str, str, str | None]
"""Key, secret and token."""

_TEXTS = ("endpoint_url", "key", "secret", "token", "profile")
_OBJECTS = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_OPTIONS = (*_TEXTS, "anon", "requester_pays", *_OBJECTS)
_CLIENT_OPTIONS = ("region_name", "endpoint_url", "verify")
_CONFIG_OPTIONS = ("connect_timeout", "read_timeout", "s3")
_IGNORED = {
    *("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "cache_regions"),
    *("default_block_size", "default_cache_type", "default_fill_cache", "max_concurrency"),
}
"""They only tune s3fs, whose configuration other programs share."""
_IGNORED_CONFIG = {
    *("retries", "max_pool_connections", "request_checksum_calculation", "response_checksum_validation"),
}
ADDRESSING = ("auto", "path", "virtual")
_ENCRYPTION = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
"""Name in `s3_additional_kwargs`, which is S3's, -> obstore's name."""
_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")


class S3Options(Record):
    """The options given, checked; what is not given is empty.

    Attributes:
        endpoints: settings that may name one, by name and value, in the order in which they win.
        bundle: path of certificates to trust besides the machine's.
        encryption: headers of new objects, by S3's names.
    """

    endpoints: tuple[tuple[str, str | None], ...]
    keys: Keys | None
    profile: str | None
    is_anonymous: bool
    region: str
    addressing: str
    bundle: str
    checks_certificates: bool
    connect_seconds: float
    read_seconds: float
    requester_pays: bool
    encryption: tuple[tuple[str, str | bool], ...]

    def __repr__(self) -> str:
        return "S3Options()"  # no secret in messages and logs


def parse_options(options: Options) -> S3Options:
    """Check options, and return them by what they mean.

    Raises:
        ValueError: an option is unknown, or has an impossible value, which the message does not contain.
    """
    check_known(options.keys() - _IGNORED, _OPTIONS)
    check_kinds({name: options.get(name) for name in _TEXTS}, str, "a text")
    check_kinds({name: options.get(name) for name in _OBJECTS}, Mapping, "an object of options")
    client, config, writing = (options.get(name) or {} for name in _OBJECTS)
    check_known(client, _CLIENT_OPTIONS, "client_kwargs")
    check_kinds({f"client_kwargs.{name}": client.get(name) for name in ("region_name", "endpoint_url")}, str, "a text")
    verify = client.get("verify")
    check_kinds({"client_kwargs.verify": verify}, (bool, str), "false, or the path of a bundle of certificates")
    return S3Options(
        endpoints=(
            ("endpoint_url", options.get("endpoint_url")),
            ("client_kwargs.endpoint_url", client.get("endpoint_url")),
        ),
        keys=_keys(options),
        profile=options.get("profile"),
        is_anonymous=flag("anon", options.get("anon")),
        region=client.get("region_name") or "",
        addressing=_addressing(config),
        bundle=verify if isinstance(verify, str) else "",
        checks_certificates=verify is not False,
        connect_seconds=seconds("config_kwargs.connect_timeout", config.get("connect_timeout"), CONNECT_SECONDS),
        read_seconds=seconds("config_kwargs.read_timeout", config.get("read_timeout"), READ_SECONDS),
        requester_pays=flag("requester_pays", options.get("requester_pays")),
        encryption=_encryption(writing),
    )


def obstore_encryption(encryption: tuple[tuple[str, str | bool], ...]) -> dict[str, str | bool]:
    """Return headers of new objects by obstore's names."""
    return {_ENCRYPTION[name]: value for name, value in encryption}


def _keys(options: Options) -> Keys | None:
    key, secret, token = (options.get(name) or None for name in ("key", "secret", "token"))
    if key and secret:
        return key, secret, token
    if key or secret or token:
        raise ValueError("key and secret must be given together")
    return None


def _addressing(config: Options) -> str:
    check_known(config.keys() - _IGNORED_CONFIG, _CONFIG_OPTIONS, "config_kwargs")
    of_s3 = config.get("s3")
    check_kinds({"config_kwargs.s3": of_s3}, Mapping, "an object of options")
    check_known(of_s3 or {}, ("addressing_style",), "config_kwargs.s3")
    style = (of_s3 or {}).get("addressing_style")
    if style is not None:
        check_choice("config_kwargs.s3.addressing_style", style, ADDRESSING)
    return style or ""


def _encryption(writing: Options) -> tuple[tuple[str, str | bool], ...]:
    check_known(writing, _ENCRYPTION, "s3_additional_kwargs")
    if writing:
        check_choice("s3_additional_kwargs.ServerSideEncryption", writing.get("ServerSideEncryption"), _ENCRYPTIONS)
    check_kinds({"s3_additional_kwargs.SSEKMSKeyId": writing.get("SSEKMSKeyId")}, str, "a text")
    check_kinds({"s3_additional_kwargs.BucketKeyEnabled": writing.get("BucketKeyEnabled")}, bool, "true or false")
    return tuple((name, writing[name]) for name in _ENCRYPTION if writing.get(name) is not None)
