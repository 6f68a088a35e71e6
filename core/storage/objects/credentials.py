"""Keys that botocore finds, and renews: profiles, single sign-on, roles, processes, metadata services."""

from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from reshard.core.storage.objects.boto_errors import is_passing
from reshard.core.text.secrets import scrubbed

if TYPE_CHECKING:
    from obstore.store import S3Credential

_CLIENT_ASKS_BEFORE = timedelta(minutes=5)
"""obstore asks for keys again when theirs expire within this time."""
_ASKED_EVERY = timedelta(seconds=10)
"""botocore knows when keys that expire have to be renewed, as long as it is asked."""
_NO_CREDENTIALS = (
    "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
    "or name storage options that have key and secret"
)


class UnusableCredentialsError(Exception):
    """There are no keys anywhere, or they cannot be used."""


class CredentialProvider:
    """Gives obstore the keys of a profile, or those found without one, each time it asks."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._found: Any = None
        self._lock = Lock()

    def __call__(self) -> "S3Credential":
        """Return the keys as they are now.

        Raises:
            UnusableCredentialsError: there are none, or they cannot be used; the client repeats only class and text.
            ConnectionError: who keeps them does not answer.
        """
        try:
            return self._keys()
        except UnusableCredentialsError:
            raise
        except Exception as error:  # botocore raises what its many sources raise
            kind = ConnectionError if is_passing(error) else UnusableCredentialsError
            raise kind(f"the credentials cannot be used: {scrubbed(str(error))}") from None

    def _keys(self) -> "S3Credential":
        from botocore.credentials import RefreshableCredentials
        from botocore.session import Session

        with self._lock:
            self._found = self._found or Session(profile=self._profile).get_credentials()
        if self._found is None:
            raise UnusableCredentialsError(_NO_CREDENTIALS)
        frozen = self._found.get_frozen_credentials()
        expires = isinstance(self._found, RefreshableCredentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CLIENT_ASKS_BEFORE + _ASKED_EVERY if expires else None,
        }
