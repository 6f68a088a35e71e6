"""Endpoints of S3 servers: checked before the first request, and compared.

The client reports a wrong endpoint only at the first request, and repeats it, with the password that may be in it.
"""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

from reshard.core.text.secrets import carries_credentials

_ENVIRONMENT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_OBS_ENVIRONMENT = ("OBS_ENDPOINT",)
_DEFAULT = "https://s3.amazonaws.com"
_CLOUDS = ("amazonaws", "myhuaweicloud")
"""Clouds where bucket names are unique, so that any endpoint leads to a bucket."""
_PORTS = {"http": 80, "https": 443}


def check_endpoint(settings: Mapping[str, Any], *, obs: bool = False) -> None:
    """Check that the endpoint in the settings of s3fs, or in their defaults, is a server's; `obs` needs no scheme."""
    origin, text = _endpoint_of(settings, obs=obs)
    if text and _parts_of(text, obs=obs) is None:
        raise ValueError(f"{origin}: must look like https://host:port, without user and password")


def same_server(one: Any, other: Any) -> bool:
    """True if two S3 filesystems reach the same buckets, judging by their endpoints."""
    return _server_of(one) == _server_of(other)


def _server_of(fs: Any) -> tuple[str, int | None]:
    settings = {"endpoint_url": fs.endpoint_url, "client_kwargs": fs.client_kwargs, "profile": fs.kwargs.get("profile")}
    parts = _parts_of(_endpoint_of(settings)[1] or _DEFAULT)
    if parts is None:  # set after the filesystem was opened
        return "", None
    host = (parts.hostname or "").rstrip(".")
    for cloud in _CLOUDS:
        if cloud in host.split("."):
            return cloud, None
    return host, None if parts.port == _PORTS[parts.scheme] else parts.port


def _endpoint_of(settings: Mapping[str, Any], *, obs: bool = False) -> tuple[str, Any]:
    """Return the setting that names the endpoint, and the endpoint; both empty for the storage's default."""
    if settings.get("endpoint_url"):
        return "endpoint_url", settings["endpoint_url"]
    client = settings.get("client_kwargs") or {}
    if client.get("endpoint_url"):
        return "client_kwargs.endpoint_url", client["endpoint_url"]
    for name in _OBS_ENVIRONMENT if obs else _ENVIRONMENT:
        if os.environ.get(name):
            return name, os.environ[name]
    if obs:
        return "", ""
    places = map(os.environ.get, ("AWS_CONFIG_FILE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"))
    return "endpoint_url in the configuration of AWS", _of_profile(settings.get("profile"), *places)


@cache
def _of_profile(profile: str | None, *_: str | None) -> str:
    """Return the endpoint in AWS's configuration; the other arguments are further keys of the cache."""
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
    from botocore.session import Session  # type: ignore[import-untyped]

    session = Session(profile=profile)
    try:
        own, services = session.get_scoped_config(), session.full_config.get("services", {})
    except BotoCoreError:  # reported at the first request
        return ""
    of_s3 = services.get(own.get("services"), {}).get("s3", {})
    return str(of_s3.get("endpoint_url") or own.get("endpoint_url") or "")


def _parts_of(text: object, *, obs: bool = False) -> SplitResult | None:
    """Split an endpoint; None if the text cannot be one."""
    from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url  # type: ignore[import-untyped]

    if not isinstance(text, str):
        return None
    if obs:
        text = text.strip()
        text = text if "://" in text else f"https://{text}"
    try:
        parts = urlsplit(text)
        # the client repeats the whole URL in its errors
        bare = not parts.query and not parts.fragment and not carries_credentials(text)
        known = parts.scheme in _PORTS and parts.port != 0 and "@" not in parts.netloc and bare
        return parts if known and (is_valid_endpoint_url(text) or is_valid_ipv6_endpoint_url(text)) else None
    except ValueError:
        return None
