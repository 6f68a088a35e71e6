"""Azure's Blob Storage, `az://` and `abfs://`.

The options are named as adlfs names them. One kind of credentials is used: what the options have, else what the
environment has, else what obstore finds by itself (a workload's or a machine's identity, the Azure CLI).
"""

import base64
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlsplit

from reshard.core.runtime.records import Record
from reshard.core.storage.endpoints import CONNECT_SECONDS, READ_SECONDS, checked_endpoint
from reshard.core.storage.objects.service import Service, client_options
from reshard.core.storage.option_checks import check_kinds, check_known, flag, seconds

if TYPE_CHECKING:
    from obstore.store import AzureConfig, RetryConfig
    from obstore.store import ObjectStore as Client

Options = Mapping[str, Any]

_KEY = ("account_key",)
_SIGNATURE = ("sas_token",)
_PRINCIPAL = ("client_id", "client_secret", "tenant_id")
_KINDS = (("connection_string",), _KEY, _SIGNATURE, _PRINCIPAL)
"""Options that are given together, each a kind of credentials; so are the variables named after them."""
_TYPES = {_KEY: "access_key", _SIGNATURE: "sas_token", _PRINCIPAL: "client_secret"}
_TEXTS = ("account_name", "account_host", *(name for kind in _KINDS for name in kind))
_TIMES = ("connection_timeout", "read_timeout")
_VARIABLE = "AZURE_STORAGE_"
_NAMES = {"sas_token": "sas_key"}
"""Name of an option -> obstore's, if it is another."""
_SUFFIX = "core.windows.net"
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


class AzureSettings(Record):
    """Everything that clients of an account are made with.

    Attributes:
        credentials: by obstore's names; none if obstore has to find them, or none are needed.
    """

    account: str
    endpoint: str
    credentials: tuple[tuple[str, str], ...] = ()
    is_anonymous: bool = False
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS

    def __repr__(self) -> str:
        return f"AzureSettings(endpoint={self.endpoint!r})"  # no secret in messages and logs


def azure_settings(options: Options) -> AzureSettings:
    """Return the settings of an account: options, then the environment.

    Raises:
        ValueError: an option is unknown, or has an impossible value, which the message does not contain; or there is
            no account.
    """
    check_known(options, (*_TEXTS, "anon", *_TIMES))
    check_kinds({name: options.get(name) for name in _TEXTS}, str, "a text")
    is_anonymous = flag("anon", options.get("anon"))
    kind, given = _credentials(options, is_anonymous)
    parts = _parsed(given.pop("connection_string")) if "connection_string" in given else {}
    if parts:
        kind, given = _kind_of(parts)
    account = (
        parts.get("accountname") or options.get("account_name") or os.environ.get(f"{_VARIABLE}ACCOUNT_NAME") or ""
    )
    endpoint = _endpoint(account, options, parts)
    _check(given)
    return AzureSettings(
        # a signature suffices to know an account by its address
        account=account or (urlsplit(endpoint).hostname or "").partition(".")[0],
        endpoint=endpoint,
        credentials=_for_obstore(kind, given),
        is_anonymous=is_anonymous,
        connect_seconds=seconds("connection_timeout", options.get("connection_timeout"), CONNECT_SECONDS),
        read_seconds=seconds("read_timeout", options.get("read_timeout"), READ_SECONDS),
    )


class AzureService(Service):
    """An account of Azure's Blob Storage."""

    protocol = "abfs"
    bucket_word: ClassVar[str] = "container"
    bucket_names: ClassVar[re.Pattern[str]] = re.compile(r"\$root|\$web|(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
    copies_whole: ClassVar[bool] = False
    """A copy has its name at once, and the service may still be at work on it; obstore does not wait."""
    has_slashless_markers: ClassVar[bool] = True
    no_credentials: ClassVar[str] = (
        "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or name "
        "storage options that have account_name and account_key"
    )

    def __init__(self, settings: AzureSettings) -> None:
        self._settings = settings

    def check_bucket(self, bucket: str) -> None:
        """Check that a container can have such a name, and that it is not followed by an account's."""
        if "@" in bucket:
            raise ValueError("name the container alone, as in abfs://container/…, and the account in storage options")
        super().check_bucket(bucket)

    @property
    def address(self) -> str:
        """The account's endpoint."""
        return self._settings.endpoint

    def server(self) -> object:
        """Return the account's endpoint."""
        return self._settings.endpoint

    def client(self, bucket: str, retry_config: "RetryConfig", sending_seconds: float = 0) -> "Client":
        """Make a client of a container."""
        from obstore.store import AzureStore

        settings = self._settings
        return AzureStore(
            bucket,
            config=cast("AzureConfig", dict(settings.credentials)),
            account_name=settings.account,
            endpoint=settings.endpoint,
            skip_signature=settings.is_anonymous,
            use_emulator=False,  # the variable for it would win over the endpoint
            client_options=client_options(settings.connect_seconds, settings.read_seconds + sending_seconds),
            retry_config=retry_config,
        )


def _credentials(options: Options, is_anonymous: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the kind of credentials to use, and their parts; none if obstore has to find them."""
    given = [kind for kind in _KINDS if any(options.get(name) for name in kind)]
    if len(given) + is_anonymous > 1:
        names = [name for kind in given for name in kind if options.get(name)] + ["anon"] * is_anonymous
        raise ValueError(f"{', '.join(names)}: give only one kind of credentials")
    for kind in given:
        if not all(options.get(name) for name in kind):
            raise ValueError(f"{', '.join(kind)} must be given together")
        return kind, {name: options[name] for name in kind}
    for kind in () if is_anonymous else _KINDS:
        found = {name: os.environ.get(f"{_VARIABLE}{name.upper()}", "") for name in kind}
        if all(found.values()):
            return kind, found
    return (), {}


def _parsed(text: str) -> dict[str, str]:
    """Return the parts of a connection string, by their names in small letters."""
    parts = dict[str, str]()
    for part in text.strip().rstrip(";").split(";"):
        name, separator, value = part.partition("=")
        if not separator:
            raise ValueError("connection_string: must look like AccountName=…;AccountKey=…")
        parts[name.strip().lower()] = value.strip()
    return parts


def _kind_of(parts: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    if parts.get("accountkey"):
        return _KEY, {"account_key": parts["accountkey"]}
    if parts.get("sharedaccesssignature"):
        return _SIGNATURE, {"sas_token": parts["sharedaccesssignature"]}
    raise ValueError("connection_string: has neither AccountKey nor SharedAccessSignature")


def _endpoint(account: str, options: Options, parts: Mapping[str, str]) -> str:
    host = options.get("account_host")
    endpoint = checked_endpoint(
        ("account_host", f"https://{host}" if host else ""),
        ("BlobEndpoint of connection_string", parts.get("blobendpoint")),
    )
    if endpoint:
        return endpoint
    if not account:
        raise ValueError(
            "no storage account: set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING, or name storage "
            "options that have account_name"
        )
    if not _ACCOUNT.fullmatch(account):
        raise ValueError("account_name: must be 3 to 24 small letters and digits")
    scheme, suffix = parts.get("defaultendpointsprotocol") or "https", parts.get("endpointsuffix") or _SUFFIX
    return checked_endpoint(("connection_string", f"{scheme}://{account}.blob.{suffix}"))


def _check(given: Mapping[str, str]) -> None:
    try:
        base64.b64decode(given.get("account_key", ""), validate=True)
    except ValueError:
        raise ValueError("account_key: must be in base64") from None
    signature = given.get("sas_token", "").strip().lstrip("?")
    if signature and not all("=" in part for part in signature.split("&") if part):
        raise ValueError("sas_token: must look like sv=…&sig=…")


def _for_obstore(kind: tuple[str, ...], given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return credentials by obstore's names; with their type, variables of the environment cannot win over them."""
    if not kind:
        return ()
    return (("credential_type", _TYPES[kind]), *((_NAMES.get(name, name), value) for name, value in given.items()))
