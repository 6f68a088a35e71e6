"""Opens the fsspec filesystem for a URL with our defaults, and formats its paths as URLs.

fsspec keeps one instance of a filesystem per process and set of options, with connections that all threads share, and
creates another after a fork. (Filesystems whose client is bound to a thread have one instance per thread.)
"""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

from reshard.core.errors import InputError
from reshard.core.runtime.suggestions import close_words
from reshard.core.storage.azure import is_azure, shorten_retries
from reshard.core.storage.endpoints import check_endpoint, same_server
from reshard.core.storage.local_disk import LOCAL_DISK
from reshard.core.storage.object_ranges import CONNECT_SECONDS, READ_SECONDS
from reshard.core.text.secrets import ADVICE, carries_credentials, scrubbed

Options = Mapping[str, Any]
"""fsspec's storage options: the keyword arguments of a filesystem."""

_S3_DEFAULTS: dict[str, Any] = {
    # an old listing would hide that an object was replaced
    "use_listings_cache": False,
    "config_kwargs": {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        # only reshard.core.storage.transfers repeats requests: retries of several layers multiply
        "retries": {"mode": "standard", "total_max_attempts": 1},
        # twice the concurrent requests of a process
        "max_pool_connections": 128,
        # not every server knows the newer checksums, and some send wrong ones with parts of objects
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    },
}
_KEYS = ("key", "secret", "token")
_TEXTS = (*_KEYS, "endpoint_url", "username", "password", "profile")
_OBJECTS = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_CLIENT_TEXTS = ("region_name", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")

_PACKAGES = {
    "s3": "'reshard[s3]'",
    "s3a": "'reshard[s3]'",
    "obs": "'reshard[obs]'",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
    "hdfs": "pyarrow",
}
"""Packages to install for a protocol; fsspec has advice for others."""
_S3_PROTOCOLS = ("s3", "s3a", "obs")
_USUAL = ("file", "s3", "obs", "gs", "abfs", "hdfs")

_IN_MEMORY = ("memory", "reference")
"""Protocols whose files fsspec keeps in the process's memory."""

_opened: "WeakSet[Any]" = WeakSet()
_of_parent: list[Any] = []
# a child process that cleaned up its parent's connections would remove them from the event loop that they share
os.register_at_fork(before=lambda: _of_parent.extend(_opened), after_in_parent=_of_parent.clear)


def open_filesystem(url: str, options: Options) -> tuple[Any, str]:
    """Return the filesystem of a URL, and the path in it. `options` override the user's configuration of fsspec."""
    if carries_credentials(url):
        raise InputError(ADVICE)
    protocol, _, rest = url.partition("://")
    if "::" in protocol or ("::" in rest and "://" in rest):
        raise InputError(f"{url!r}: chains of URLs cannot be used")
    if protocol in _S3_PROTOCOLS:
        from reshard.core.storage.plain_s3 import open_plain

        plain = open_plain(url, options, lambda: _open_by_fsspec(url, protocol, options)[0])
        if plain is not None:
            return plain
    return _open_by_fsspec(url, protocol, options)


def _open_by_fsspec(url: str, protocol: str, options: Options) -> tuple[Any, str]:
    try:
        kind = _class_of(url, protocol)
        path, url_options = _parse(kind, url)
        if _is_local(kind):
            return LOCAL_DISK, path
        settings = _settings(kind, options)
        fs = kind(**settings | url_options)
    except InputError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        advice = f"pip install {package}" if package else error
        raise InputError(f"{url!r}: {protocol}:// needs a package that is not installed: {advice}") from error
    except Exception as error:  # the packages behind fsspec raise anything about a URL that they cannot use
        raise InputError(f"{url!r}: cannot be opened: {scrubbed(str(error))}") from error
    if speaks_s3(kind):
        fs.retries = 1
        _opened.add(fs)
    elif is_azure(kind):
        shorten_retries(fs)
    written = url_of(fs, path)
    path_again, options_again = _parse(kind, written)
    if path_again != path or settings | options_again != settings | url_options:
        raise InputError(
            f"{url!r}: cannot be used, since records would name it {written}, which is another place. "
            "Move the storage's settings from the URL to storage options"
        )
    return fs, path


def check_lasting(url: str) -> None:
    """Check that files written at a URL outlive the process; for commands and runs, which end after writing.

    Raises:
        InputError: the files are kept in the process's memory.
    """
    protocol, separator, _ = url.partition("://")
    if separator and protocol in _IN_MEMORY:
        raise InputError(
            f"{scrubbed(url)}: {protocol}:// keeps files in the memory of this process, and they would be gone with "
            "it: name a directory, or a URL of an object store"
        )


def url_of(fs: Any, path: str) -> str:
    """Format a path as a URL that leads to it again."""
    url = str(fs.unstrip_protocol(path))
    options = fs.storage_options
    if not options.get("host"):
        return url
    protocol, _, path = url.partition("://")
    user, port = options.get("username") or options.get("user"), options.get("port")
    authority = (f"{user}@" if user else "") + options["host"] + (f":{port}" if port else "")
    return f"{protocol}://{authority}/{path.removeprefix('/')}"


def _class_of(url: str, protocol: str) -> Any:
    if protocol == "obs":
        # not from fsspec's registry, where another package may have put its own class, with other options
        from reshard.core.storage.obs import OBSFileSystem

        return OBSFileSystem
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        near = close_words(protocol, [*fsspec.available_protocols(), "obs"], 3) or _USUAL
        names = ", ".join(f"{name}://" for name in dict.fromkeys(near))
        raise InputError(f"{url!r}: unknown storage {protocol}://; known are {names} and others") from error


def _is_local(kind: type) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return issubclass(kind, LocalFileSystem)


def _parse(kind: Any, url: str) -> tuple[str, dict[str, Any]]:
    """Split a URL into its path and the options that it carries."""
    return str(kind._strip_protocol(url)), kind._get_kwargs_from_urls(url)  # noqa: SLF001 (fsspec's own interface)


def _settings(kind: Any, options: Options) -> dict[str, Any]:
    """Merge our defaults, the user's configuration of fsspec and `options`, in this order."""
    if not speaks_s3(kind):
        return dict(options)
    from fsspec.config import apply_config

    settings: dict[str, Any] = dict(_S3_DEFAULTS)
    for given in (apply_config(kind, {}), options):
        _check_kinds(given)
        if any(name in given for name in _KEYS):
            settings |= dict.fromkeys(_KEYS)  # keys come from one place together
        settings |= {**given, "config_kwargs": settings["config_kwargs"] | (given.get("config_kwargs") or {})}
    obs = "obs" in kind.protocol
    _check_s3_settings(settings)
    check_endpoint(settings, obs=obs)
    if obs:
        from reshard.core.storage.obs_settings import completed

        # the class does the same, but fsspec must distinguish instances by values from the environment, too
        settings = completed(settings)
    return settings


def speaks_s3(kind: type) -> bool:
    """True if a filesystem class is s3fs's, derived from it, or PlainS3; s3fs need not be installed."""
    return any(base.__name__ in ("S3FileSystem", "PlainS3") for base in kind.__mro__)


def same_storage(one: Any, other: Any) -> bool:
    """True if equal paths of two filesystems are the same place, as far as can be known.

    S3 servers are the same whatever protocol and keys they are reached with.
    """
    if speaks_s3(type(one)) and speaks_s3(type(other)):
        return same_server(one, other)
    return type(one) is type(other) and bool(one.storage_options == other.storage_options)


def _check_kinds(given: Options) -> None:
    """Check that options are texts or objects where required; errors never contain their values."""
    client = given.get("client_kwargs")
    texts = {name: given.get(name) for name in _TEXTS}
    if isinstance(client, Mapping):
        texts |= {f"client_kwargs.{name}": client.get(name) for name in _CLIENT_TEXTS}
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise ValueError(f"{name}: must be a text")
    for name in _OBJECTS:
        if not isinstance(given.get(name), Mapping | None):
            raise ValueError(f"{name}: must be an object of options")


def _check_s3_settings(settings: Options) -> None:
    """Check option names: s3fs reports an unknown one only at the first request, and cryptically."""
    from aiobotocore.config import AioConfig

    unknown = sorted(settings.keys() - _s3_option_names())
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such storage option; there are endpoint_url, key, secret, token, …")
    unknown = sorted((settings.get("client_kwargs") or {}).keys() - _client_option_names())
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such option of client_kwargs; there are region_name, verify, …")
    try:
        AioConfig(**settings["config_kwargs"])
    except (AttributeError, TypeError) as error:
        raise ValueError(f"config_kwargs: {error}") from error


@cache
def _client_option_names() -> frozenset[str]:
    import inspect

    from botocore.session import Session  # type: ignore[import-untyped]

    names = frozenset(inspect.signature(Session.create_client).parameters)
    return names - {"self", "service_name", "config"}  # s3fs sets these itself


@cache
def _s3_option_names() -> frozenset[str]:
    import inspect

    from aiobotocore.session import AioSession
    from s3fs import S3FileSystem

    own = [name for kind in (S3FileSystem, AioSession) for name in inspect.signature(kind.__init__).parameters]
    return frozenset(own) | {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}
