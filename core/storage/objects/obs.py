"""Huawei's Object Storage Service, `obs://`, which speaks the protocol of S3: where its endpoint and keys come from.

1. storage options: `endpoint_url`, `key`, `secret`, `token`, as those of `s3://`, and all its others;
2. fsspec's own configuration (`~/.config/fsspec/*.json`, `FSSPEC_OBS_KEY` …), which fsspec makes options of;
3. the variables of Huawei's tools: OBS_ENDPOINT, OBS_ACCESS_KEY_ID, OBS_SECRET_ACCESS_KEY, OBS_SECURITY_TOKEN.

All keys come from the same place. AWS's variables and profiles are never used: its keys must not be sent to another
provider.
"""

import os
import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from reshard.core.storage.endpoints import checked_endpoint

_REGIONAL_HOST = re.compile(r"obs[a-z0-9-]*\.([a-z0-9-]+)\.myhuaweicloud\..+")
_ANY_REGION = "us-east-1"
"""Part of signatures; servers without regions accept this one."""


def endpoint_of(*settings: tuple[str, str | None]) -> tuple[str, str]:
    """Return the endpoint with its scheme, https by default, and its host.

    Each argument is the name of a setting, and its value.

    Raises:
        ValueError: there is none, or it is not a server's.
    """
    texts = (
        (name, (text or "").strip()) for name, text in (*settings, ("OBS_ENDPOINT", os.environ.get("OBS_ENDPOINT")))
    )
    full = [(name, text if "://" in text else f"https://{text}") for name, text in texts if text]
    endpoint = checked_endpoint(*full)
    if not endpoint:
        raise ValueError(
            "no OBS endpoint: set OBS_ENDPOINT, to obs.cn-north-4.myhuaweicloud.com, say, "
            "or name storage options that have endpoint_url"
        )
    return endpoint, urlsplit(endpoint).hostname or ""


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


def keys_of_environment() -> tuple[str, str, str | None]:
    """Return key, secret and token.

    Raises:
        ValueError: there are none.
    """
    key, secret = os.environ.get("OBS_ACCESS_KEY_ID"), os.environ.get("OBS_SECRET_ACCESS_KEY")
    if not (key and secret):
        raise ValueError(
            "no OBS credentials: set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY (and OBS_SECURITY_TOKEN with "
            "temporary ones), or name storage options that have key and secret. AWS's credentials are not used"
        )
    return key, secret, os.environ.get("OBS_SECURITY_TOKEN") or None
