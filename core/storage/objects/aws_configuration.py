"""What the tools of AWS are configured with on this machine, as botocore reads it.

Variables of the environment win over the configuration file. botocore is loaded only where there is such a file.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    import ssl

ANY_REGION = "us-east-1"
"""The region for which is signed if none is configured."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_PROFILES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_TOKENS = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
_REGION_SECONDS = 10


class Configuration(Record):
    """What the environment and AWS's configuration file say.

    Attributes:
        endpoints: settings that may name one, by name and value, in the order in which they win.
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


def region_of(endpoint: str, bucket: str, context: "ssl.SSLContext | None" = None) -> str:
    """Return the region of a bucket, which AWS shows without credentials; the usual one if there is no such bucket.

    Raises:
        ConnectionError: it does not answer now.
    """
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        request = Request(f"{endpoint}/{bucket}", method="HEAD")
        with urlopen(request, timeout=_REGION_SECONDS, context=context) as answer:
            status, headers = answer.status, answer.headers
    except HTTPError as error:  # denied, or elsewhere
        status, headers = error.code, error.headers
    except OSError:
        status, headers = 0, {}
    region: str | None = headers.get("x-amz-bucket-region")
    if not region and (status == 0 or status >= 500):
        raise ConnectionError(f"{endpoint} does not say in which region the bucket {bucket!r} is")
    return region or ANY_REGION
