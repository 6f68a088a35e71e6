"""Google Cloud Storage, `gs://`.

The options are named as gcsfs names them. Credentials are those of `token`, else of GOOGLE_APPLICATION_CREDENTIALS,
else what obstore finds by itself (gcloud's, or those of the machine).
"""

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.runtime.records import Record
from reshard.core.storage.endpoints import READ_SECONDS, checked_endpoint, server_of
from reshard.core.storage.objects.service import Service, client_options
from reshard.core.storage.option_checks import check_kinds, check_known

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client
    from obstore.store import RetryConfig

Options = Mapping[str, Any]

_OPTIONS = ("token", "endpoint_url", "project")
"""The project is of no use: it is the bucket's."""
_ENDPOINT = "https://storage.googleapis.com"
_ANONYMOUS = "anon"
_USER = "authorized_user"
_BY_OBSTORE = ("google_default", "cloud")
"""Values of `token` by which gcsfs looks for credentials where obstore does."""
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_BEARER = "GOOGLE_BEARER_TOKEN"
_NO_LOGIN = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
"""What makes obstore send no credentials: its option `skip_signature` has no effect on writing."""


class GcsSettings(Record):
    """Everything that clients are made with.

    Attributes:
        account: what is in the file of a service account; empty for other credentials.
        user_path: the file that gcloud keeps a user's credentials in; empty for others.
    """

    endpoint: str
    account: str = ""
    user_path: str = ""

    def __repr__(self) -> str:
        return f"GcsSettings(endpoint={self.endpoint!r})"  # no secret in messages and logs


def gcs_settings(options: Options) -> GcsSettings:
    """Return the settings: options, then the environment.

    Raises:
        ValueError: an option is unknown, or has an impossible value, which the message does not contain.
    """
    check_known(options, _OPTIONS)
    check_kinds({name: options.get(name) for name in ("endpoint_url", "project")}, str, "a text")
    check_kinds({"token": options.get("token")}, (str, Mapping), "a path, 'anon', or the content of such a file")
    token = options.get("token") or os.environ.get(_FILE)
    emulator = os.environ.get(_EMULATOR, "")
    account: Mapping[str, Any] = {}
    if token and token not in (_ANONYMOUS, *_BY_OBSTORE):
        account = _read("token" if options.get("token") else _FILE, token)
    elif token == _ANONYMOUS or (not token and emulator and not options.get("endpoint_url")):
        account = _NO_LOGIN
    if account and os.environ.get(_BEARER):
        raise ValueError(f"{_BEARER} is set, and would be used instead: unset it")
    endpoint = checked_endpoint(
        ("endpoint_url", options.get("endpoint_url")),
        (_EMULATOR, emulator if "://" in emulator or not emulator else f"http://{emulator}"),
        ("gcs_base_url of the service account", account.get("gcs_base_url")),
    )
    is_user = account.get("type") == _USER
    return GcsSettings(
        endpoint=endpoint or _ENDPOINT,
        account=json.dumps(account) if account and not is_user else "",
        user_path=str(token) if is_user else "",
    )


class GcsService(Service):
    """Google Cloud Storage, or a server that speaks its protocol."""

    protocol = "gs"
    bucket_names: ClassVar[re.Pattern[str]] = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
    puts_by_generation: ClassVar[bool] = True
    no_credentials: ClassVar[str] = (
        f"set {_FILE} to the path of a service account's file, or name storage options that have it as token"
    )

    def __init__(self, settings: GcsSettings) -> None:
        self._settings = settings

    @property
    def address(self) -> str:
        """The endpoint."""
        return self._settings.endpoint

    def server(self) -> object:
        """Return host and port; all of Google's are one server, since bucket names are unique."""
        return server_of(self._settings.endpoint)

    def client(self, bucket: str, retry_config: "RetryConfig", sending_seconds: float = 0) -> "Client":
        """Make a client of a bucket."""
        from obstore.store import GCSStore

        settings = self._settings
        credentials: Any = {}
        if settings.account:
            credentials = {"service_account_key": settings.account}
        elif settings.user_path:
            credentials = {"application_credentials": settings.user_path}
        return GCSStore(
            bucket,
            config=credentials,
            base_url=settings.endpoint,
            skip_signature=False,
            client_options=client_options(read_seconds=READ_SECONDS + sending_seconds),
            retry_config=retry_config,
        )


def _read(origin: str, token: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is in a file of credentials, or is given in its place."""
    if isinstance(token, Mapping):
        found: Any = token
    else:
        try:
            with open(os.path.expanduser(token), encoding="utf-8") as file:
                found = json.load(file)
        except OSError as error:
            # what was given may not be a path
            raise ValueError(f"{origin}: the file cannot be read: {error.strerror}") from None
        except ValueError:
            raise ValueError(f"{origin}: the file is not valid JSON") from None
    # a user's are known to obstore by the path of their file only
    is_user = isinstance(found, Mapping) and found.get("type") == _USER and isinstance(token, str)
    if not is_user and not (isinstance(found, Mapping) and "private_key" in found):
        raise ValueError(f"{origin}: must be the file of a service account, or of a user as gcloud writes it")
    return dict(found)
