"""Settings of Huawei's Object Storage Service, `obs://`, which speaks the protocol of S3.

Endpoint and keys come from the first of these that has them:

1. storage options: `endpoint_url`, `key`, `secret`, `token`, as those of s3fs, and all its others;
2. fsspec's own configuration (`~/.config/fsspec/*.json`, `FSSPEC_OBS_KEY` …), which fsspec makes options of;
3. the variables of Huawei's tools: OBS_ENDPOINT, OBS_ACCESS_KEY_ID, OBS_SECRET_ACCESS_KEY, OBS_SECURITY_TOKEN.

All keys come from the same place. AWS's variables and profiles are never used: its keys must not be sent to another
provider.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

_REGIONAL_HOST = re.compile(r"obs[a-z0-9-]*\.([a-z0-9-]+)\.myhuaweicloud\..+")
_ANY_REGION = "us-east-1"
"""Part of signatures; servers without regions accept this one."""
_NO_PROFILE = {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
"""Settings of botocore: option of the configuration file, variable of the environment, default, conversion."""


def completed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Complete storage options from the environment and the endpoint's name."""
    client, config = dict(options.get("client_kwargs") or {}), dict(options.get("config_kwargs") or {})
    given = options.get("endpoint_url") or client.pop("endpoint_url", None) or os.environ.get("OBS_ENDPOINT", "")
    endpoint, host = _parsed_endpoint(given)
    return {
        "session_vars": _NO_PROFILE,
        **options,
        **_keys(options),
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": region_of(host)} | client,
        "config_kwargs": config | {"s3": {"addressing_style": addressing_of(host)} | config.get("s3", {})},
    }


def region_of(host: str) -> str:
    """Return the region in an endpoint's name, which signatures must contain."""
    match = _REGIONAL_HOST.fullmatch(host)
    return match[1] if match else _ANY_REGION


def addressing_of(host: str) -> str:
    """Return the addressing style: OBS wants the bucket in the host name, impossible with addresses and bare names."""
    try:
        ip_address(host)
    except ValueError:
        return "virtual" if "." in host else "path"
    return "path"


def _keys(options: Mapping[str, Any]) -> dict[str, Any]:
    if options.get("anon"):
        return {}
    keys = {name: options.get(name) for name in ("key", "secret", "token")}
    if not any(keys.values()):
        names = ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN")
        keys = dict(zip(keys, map(os.environ.get, names), strict=True))
    if not (keys["key"] and keys["secret"]):
        raise ValueError(
            "no OBS credentials: set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY (and OBS_SECURITY_TOKEN with "
            "temporary ones), or name storage options that have key and secret. AWS's credentials are not used"
        )
    return keys


def _parsed_endpoint(text: str) -> tuple[str, str]:
    """Return an endpoint with a scheme, https by default, and its host."""
    if not text.strip():
        raise ValueError(
            "no OBS endpoint: set OBS_ENDPOINT, to obs.cn-north-4.myhuaweicloud.com, say, "
            "or name storage options that have endpoint_url"
        )
    endpoint = text.strip() if "://" in text else f"https://{text.strip()}"
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not an endpoint, such as obs.cn-north-4.myhuaweicloud.com")
    return endpoint, parts.hostname
