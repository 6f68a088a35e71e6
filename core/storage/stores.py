"""Opens the store for a URL.

A process has one store for the same settings, with connections that all its threads share.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from reshard.core.errors import InputError
from reshard.core.storage.chains import open_chain, split_chain
from reshard.core.storage.objects.azure import AzureService, azure_settings
from reshard.core.storage.objects.gcs import GcsService, gcs_settings
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.objects.s3 import S3Service, obs_settings, s3_settings
from reshard.core.storage.objects.service import Service
from reshard.core.storage.store import Store
from reshard.core.text.secrets import ADVICE, carries_credentials, scrubbed

Options = Mapping[str, Any]
"""Storage options: endpoints, credentials and other settings of a storage."""

_KEYS = (
    *("key", "secret", "token", "anon"),
    *("connection_string", "account_key", "sas_token", "client_id", "client_secret", "tenant_id"),
)
_SERVICES: dict[str, tuple[str, Callable[[Options], Any], Callable[[Any], Service]]] = {
    "s3": ("s3", s3_settings, S3Service),
    "s3a": ("s3", s3_settings, S3Service),
    "obs": ("obs", obs_settings, S3Service),
    "gs": ("gs", gcs_settings, GcsService),
    "gcs": ("gs", gcs_settings, GcsService),
    "abfs": ("azure", azure_settings, AzureService),
    "az": ("azure", azure_settings, AzureService),
    "abfss": ("azure", azure_settings, AzureService),
}
"""Protocol -> extra to install, settings from options, and the service with such settings."""
_CONFIGURATION_DIRECTORY = "~/.config/fsspec"
_VERSION = "versionId="

_opened: dict[Any, ObjectStore] = {}


def open_store(url: str, options: Options) -> tuple[Store, str]:
    """Return the store of a URL, and the path in it. `options` override the user's configuration of fsspec.

    Raises:
        InputError: the URL carries credentials, its protocol is unknown or needs a package, or the options do not open
            it.
    """
    if carries_credentials(url):
        raise InputError(ADVICE)
    if split_chain(url)[1]:
        return open_chain(url, options, open_store)
    protocol, _, rest = url.partition("://")
    if protocol in _SERVICES:
        return _object_store(url, protocol, options), rest.rstrip("/")
    if protocol in ("http", "https"):
        from reshard.core.storage.web import open_web

        return open_web(url, protocol, options)
    from reshard.core.storage.fsspec_store import open_by_fsspec

    return open_by_fsspec(url, protocol, options)


def object_store(protocol: str, options: Options) -> ObjectStore:
    """Return the store of all buckets that a protocol reaches with these options.

    Raises:
        ImportError: a package is not installed.
        ValueError: the options do not open it.
    """
    import obstore  # noqa: F401  whole: a submodule is not found while another thread imports the package

    _, settings_of, service_of = _SERVICES[protocol]
    settings = settings_of(_merged(protocol, options))
    return _opened.get(settings) or _opened.setdefault(settings, ObjectStore(service_of(settings)))  # threads race


def _object_store(url: str, protocol: str, options: Options) -> ObjectStore:
    try:
        if f"?{_VERSION}" in url:
            raise ValueError(f"{_VERSION[:-1]} in a URL is not supported: files are read as they are now")
        store = object_store(protocol, options)
        store.service.check_bucket(url.partition("://")[2].partition("/")[0])
    except ImportError as error:
        advice = f"{protocol}:// needs a package that is not installed: pip install 'reshard[{_SERVICES[protocol][0]}]'"
        raise InputError(f"{url!r}: {advice}") from error
    except ValueError as error:
        raise InputError(f"{url!r}: cannot be opened: {scrubbed(str(error))}") from error
    return store


def forget_stores() -> None:
    """Forget the stores that are open; for tests, whose servers come and go."""
    _opened.clear()


def _merged(protocol: str, options: Options) -> dict[str, Any]:
    """Merge the user's configuration of fsspec and `options`, in this order."""
    configured = _configured(protocol)
    if any(options.get(name) for name in _KEYS):
        configured = {name: value for name, value in configured.items() if name not in _KEYS}  # keys come together
    merged = {**configured, **options}
    for name in ("client_kwargs", "config_kwargs"):
        if isinstance(configured.get(name), Mapping) and isinstance(options.get(name), Mapping):
            merged[name] = {**configured[name], **options[name]}
    return {name: value for name, value in merged.items() if value is not None}


def _configured(protocol: str) -> dict[str, Any]:
    """Return what fsspec's configuration says of all names of a protocol; fsspec is loaded only where there is one."""
    directory = os.environ.get("FSSPEC_CONFIG_DIR") or os.path.expanduser(_CONFIGURATION_DIRECTORY)
    has_variables = any(name.startswith("FSSPEC_") for name in os.environ)
    if "fsspec" not in sys.modules and not has_variables and not os.path.isdir(directory):
        return {}
    from fsspec.config import conf

    names = [each for each, (extra, *_) in _SERVICES.items() if extra == _SERVICES[protocol][0]]
    return {name: value for each in names for name, value in conf.get(each, {}).items()}


def check_lasting(url: str) -> None:
    """Check that files written at a URL outlive the process; for commands and runs, which end after writing.

    Raises:
        InputError: the files are kept in the process's memory.
    """
    protocol, separator, _ = url.partition("://")
    if separator and protocol in ("memory", "reference"):
        raise InputError(
            f"{scrubbed(url)}: {protocol}:// keeps files in the memory of this process, and they would be gone with "
            "it: name a directory, or a URL of an object store"
        )
