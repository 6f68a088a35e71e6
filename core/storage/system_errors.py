"""Explains errors of the operating system, and those that packages behind fsspec derive from them."""

from reshard.core.errors import is_transient
from reshard.core.storage.store import NO_FILE, Reason
from reshard.core.text.secrets import scrubbed

_TRANSIENT_ERRORS = {"ConnectionError", "Timeout", "ChunkedEncodingError"}
"""Names of classes of requests, or of their bases: the package need not be installed."""


def reason_of_system(error: Exception) -> Reason | None:
    """Explain an OSError; None for any other error."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError):
        return NO_FILE
    if isinstance(error, PermissionError):
        return Reason("permission denied")
    status = getattr(getattr(error, "response", None), "status_code", 0)
    transient = (
        is_transient(error)
        or any(base.__name__ in _TRANSIENT_ERRORS for base in type(error).__mro__)
        or (isinstance(status, int) and (status >= 500 or status == 429))
    )
    if isinstance(error, TimeoutError) and not str(error):
        return Reason("no answer in time", transient)
    return Reason(scrubbed(error.strerror or str(error) or type(error).__name__), transient)
