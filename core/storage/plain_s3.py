"""An S3 storage whose settings are plain: an endpoint and a pair of keys, from options or from the environment.

Importing s3fs and making its client takes half a second of processor time and 27 MiB. With plain settings obstore can
look, list and read without it: the filesystem here does that itself, and opens s3fs's for whatever else is asked of
it. Any setting that is not known to be plain is s3fs's to interpret, or to refuse.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from msgspec import field

from reshard.core.runtime.records import Record
from reshard.core.storage.object_ranges import is_proxy, plain_ranges
from reshard.core.storage.obs_settings import completed

Options = Mapping[str, Any]

_URL = re.compile(r"(?P<protocol>s3a?|obs)://(?P<path>(?P<bucket>[a-z0-9][a-z0-9-]{1,61}[a-z0-9])(?:/.*)?)", re.DOTALL)
"""A bucket whose name means nothing but itself, in a host's name, too."""
_SPECIAL = re.compile(r"--|-s3alias$")
"""In names of S3's access points and of buckets of other kinds."""
_VERSION = "versionId="
"""In a URL it is not part of a key for s3fs."""
_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_ENDPOINT = re.compile(rf"https?://(?P<host>{_LABEL}(?:\.{_LABEL})*)(?::(?P<port>[1-9][0-9]{{0,4}}))?/?")
_AWS = re.compile(r"s3(?:\.(?!cn-)[a-z]{2}-[a-z]+-[0-9])?\.amazonaws\.com")
"""Hosts of AWS that take requests of the usual kind."""
_REGION = re.compile(r"[a-z0-9-]+")
_ANY_REGION = "us-east-1"
_OPTIONS = {"key", "secret", "token", "endpoint_url", "client_kwargs"}
_CLIENT_OPTIONS = {"region_name", "endpoint_url"}
_VARIABLES = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_PAGER"),
}
"""Those of AWS's variables that are understood here, or mean nothing where keys are at hand."""
_BUNDLES = {"AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}
"""Certificates that replace the known authorities, to which obstore would only add them."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}


class _Settings(Record):
    """Plain settings, complete; `process`: a fork shares no connections."""

    protocol: str
    endpoint: str
    region: str
    is_virtual: bool
    key: str
    secret: str
    token: str | None
    process: int = field(default_factory=os.getpid)

    def __repr__(self) -> str:
        return f"_Settings(protocol={self.protocol!r}, endpoint={self.endpoint!r})"  # no secret in messages and logs


class PlainS3:
    """A filesystem that looks up, lists and reads by itself, and passes all else on to s3fs's."""

    version_aware = False

    def __init__(self, settings: _Settings, open_s3fs: Callable[[], Any]) -> None:
        self._protocol = settings.protocol
        self._open_s3fs = open_s3fs
        self.endpoint_url = settings.endpoint
        self.client_kwargs: Options = {}
        self.kwargs: Options = {}
        self.storage_options: Options = {}
        keys = settings.key, settings.secret, settings.token
        self.reshard_ranges = plain_ranges(settings.endpoint, settings.region, keys, is_virtual=settings.is_virtual)

    @cached_property
    def s3fs(self) -> Any:
        """The filesystem of s3fs."""
        return self._open_s3fs()

    def __getattr__(self, name: str) -> Any:
        """Return what s3fs's filesystem has under a name."""
        if name.startswith("_") or name == "s3fs":  # asked for by Python itself, or failed to open
            raise AttributeError(name)
        return getattr(self.s3fs, name)

    def unstrip_protocol(self, path: str) -> str:
        """Format a path as a URL."""
        return f"{self._protocol}://{path}"

    def split_path(self, path: str) -> tuple[str, str, None]:
        """Split a path into bucket and key; it names no version."""
        bucket, _, key = path.partition("/")
        return bucket, key.partition(f"?{_VERSION}")[0], None

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: no listings are kept, nor does s3fs with these settings."""


def open_plain(url: str, options: Options, open_s3fs: Callable[[], Any]) -> tuple[PlainS3, str] | None:
    """Return the filesystem of a URL, and the path in it; None unless all settings are plain."""
    found = _URL.fullmatch(url)
    if not found or _SPECIAL.search(found["bucket"]) or _VERSION in url or not _has_packages():
        return None
    protocol = "obs" if found["protocol"] == "obs" else "s3"
    settings = _settings(protocol, options) if _is_plain_process(protocol) else None
    if settings is None:
        return None
    fs = _opened.get(settings) or _opened.setdefault(settings, PlainS3(settings, open_s3fs))  # threads may race
    return fs, found["path"].rstrip("/")


_opened: dict[_Settings, PlainS3] = {}


def forget_plain() -> None:
    """Clear cached filesystems; for tests, which change servers and the environment."""
    _opened.clear()


def _has_packages() -> bool:
    return bool(find_spec("s3fs") and find_spec("obstore"))


def _is_plain_process(protocol: str) -> bool:
    """True if neither the environment nor fsspec's configuration says more than is understood here."""
    from fsspec.config import conf
    from fsspec.registry import known_implementations, registry

    if any(conf.get(name) for name in ({"obs"} if protocol == "obs" else {"s3", "s3a"})):
        return False
    if protocol == "s3":
        names = {name: os.environ.get(name) or os.path.expanduser(path) for name, path in _FILES.items()}
        kind = registry.get("s3")
        given = f"{kind.__module__}.{kind.__name__}" if kind else known_implementations["s3"]["class"]
        if given not in ("s3fs.S3FileSystem", "s3fs.core.S3FileSystem") or any(map(_has_content, names.values())):
            return False
    return not any(map(_says_more, os.environ.items()))


def _has_content(path: str) -> bool:
    return os.path.exists(path) and path != os.devnull


def _says_more(variable: tuple[str, str]) -> bool:
    name, _ = variable
    return (name.startswith("AWS_") and name not in _VARIABLES | _BUNDLES) or is_proxy(variable)


def _settings(protocol: str, options: Options) -> _Settings | None:
    given = {name: value for name, value in options.items() if value is not None}
    client = given.pop("client_kwargs", {})
    if not isinstance(client, Mapping) or given.keys() - _OPTIONS or client.keys() - _CLIENT_OPTIONS:
        return None
    if "endpoint_url" in given and "endpoint_url" in client:
        return None
    if not all(isinstance(value, str) and value for value in [*given.values(), *client.values()]):
        return None
    if protocol == "s3":
        return _checked(protocol, _of_s3(given, client))
    try:
        return _checked(protocol, completed(given | {"client_kwargs": client}))
    except ValueError:
        return None  # s3fs's path says why


def _of_s3(given: Options, client: Mapping[str, str]) -> dict[str, Any]:
    environment = os.environ
    own = {name: given.get(name) for name in ("key", "secret", "token")}
    if not any(own.values()):
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        own = {name: environment.get(variable) for name, variable in zip(own, names, strict=True)}
    region = client.get("region_name") or environment.get("AWS_DEFAULT_REGION")
    endpoint = (
        given.get("endpoint_url")
        or client.get("endpoint_url")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or ("https://s3." + (f"{region}." if region else "") + "amazonaws.com")
    )
    return own | {"endpoint_url": endpoint, "client_kwargs": {"region_name": region or _ANY_REGION}}


def _checked(protocol: str, full: Options) -> _Settings | None:
    """Return complete settings; None if one of them is not of the usual form."""
    found = _ENDPOINT.fullmatch(full["endpoint_url"])
    region = full["client_kwargs"]["region_name"]
    if not found or int(found["port"] or 1) > 0xFFFF or not _REGION.fullmatch(region) or region == "aws-global":
        return None
    if not (full["key"] and full["secret"]) or ("amazonaws" in found["host"] and not _AWS.fullmatch(found["host"])):
        return None
    is_virtual = full.get("config_kwargs", {}).get("s3", {}).get("addressing_style") == "virtual"
    endpoint = full["endpoint_url"].rstrip("/")
    if endpoint.startswith("https:") and any(map(os.environ.get, _BUNDLES)):
        return None
    return _Settings(protocol, endpoint, region, is_virtual, full["key"], full["secret"], full["token"] or None)
