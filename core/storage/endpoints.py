"""Checks endpoints of servers before the first request, compares them, and sets the time limits of requests.

A client reports a wrong endpoint only at the first request, and repeats it, with the password that may be in it.
"""

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from reshard.core.text.secrets import carries_credentials

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""For each piece of an answer to arrive."""
_CLOUDS = ("amazonaws", "myhuaweicloud", "googleapis")
"""Clouds where bucket names are unique, so that any endpoint leads to a bucket."""
_PORTS = {"http": 80, "https": 443}
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")


def checked_endpoint(*settings: tuple[str, str | None]) -> str:
    """Return the first endpoint that is set; empty if none is. Each argument is the name of a setting, and its value.

    Raises:
        ValueError: it is not a server's, or says more than that.
    """
    origin, endpoint = next(((name, text) for name, text in settings if text), ("", ""))
    if endpoint and not _is_endpoint(endpoint):
        raise ValueError(f"{origin}: must look like https://host:port, without user and password")
    return (endpoint or "").rstrip("/")


def _is_endpoint(text: str) -> bool:
    """True if a text is the URL of a server."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    # the whole URL may end in messages
    bare = not parts.query and not parts.fragment and "@" not in parts.netloc and not carries_credentials(text)
    return bare and parts.scheme in _PORTS and port != 0 and _is_host(parts.hostname or "") and text == text.strip()


def _is_host(host: str) -> bool:
    if ":" not in host:
        return _HOST.fullmatch(host) is not None
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def server_of(endpoint: str) -> tuple[str, int | None]:
    """Return a server's host and port, if it is not the usual one; of some clouds the name."""
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").rstrip(".")
    for cloud in _CLOUDS:
        if cloud in host.split("."):
            return cloud, None
    return host, None if parts.port == _PORTS[parts.scheme] else parts.port
