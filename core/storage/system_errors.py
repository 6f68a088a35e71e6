"""Explains errors of the operating system, and of the packages behind fsspec's filesystems."""

from reshard.core.errors import is_transient
from reshard.core.storage.store import NO_FILE, Reason
from reshard.core.text.secrets import scrubbed

# by name, because the packages need not be installed; some raise errors that are no OSErrors
_CLIENT_PACKAGES = ("aiohttp", "requests", "paramiko", "zipfile")
_TRANSIENT_CLIENT_ERRORS = {"ConnectionError", "ClientConnectionError", "ClientPayloadError"}
"""Names of classes, or of their bases."""


def reason_of_system(error: Exception) -> Reason | None:
    """Explain an OSError, or an error of a known client; None for any other."""
    package = type(error).__module__.partition(".")[0]
    if not isinstance(error, OSError) and package not in _CLIENT_PACKAGES:
        return None
    if isinstance(error, FileNotFoundError):
        return NO_FILE
    if isinstance(error, PermissionError):
        return Reason("permission denied")
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    transient = (
        is_transient(error)
        or any(base.__name__ in _TRANSIENT_CLIENT_ERRORS for base in type(error).__mro__)
        or (isinstance(status, int) and (status >= 500 or status == 429))
    )
    if isinstance(error, TimeoutError) and not str(error):
        return Reason("no answer in time", transient)
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return Reason(scrubbed(text), transient)
