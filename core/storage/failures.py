"""Maps errors of storages to ours: which URL, which action failed, and whether a retry may help."""

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import ReshardError, StorageError, UnusableStorageError, is_transient
from reshard.core.storage import azure
from reshard.core.storage.s3_answers import Reason, reason_of
from reshard.core.storage.urls import Location
from reshard.core.text.secrets import scrubbed

# by name, because the packages need not be installed; some raise errors that are no OSErrors
_CLIENT_PACKAGES = ("botocore", "aiobotocore", "aiohttp", "requests", "paramiko", "gcsfs")
_TRANSIENT_CLIENT_ERRORS = {"ConnectionError", "ClientConnectionError", "ClientPayloadError"}
"""Names of classes, or of their bases."""


@contextmanager
def mapped_errors(location: Location, action: str) -> Iterator[None]:
    """Raise errors of a storage as a StorageError that names the URL; `action` completes the sentence "cannot …"."""
    try:
        yield
    except ReshardError:
        raise
    except Exception as error:
        reason = _reason(error, location)
        if reason is None:
            raise
        # the client's error repeats a wrong endpoint, with the password that may be in it
        cause = None if _is_wrong_endpoint(error) else error
        kind = UnusableStorageError if reason.unusable else StorageError
        raise kind(f"{location}: cannot {action}: {reason.text}", transient=reason.transient) from cause


def _reason(error: Exception, location: Location) -> Reason | None:
    """Explain an error; None if it is not a storage's."""
    if _is_wrong_endpoint(error):
        return Reason("its endpoint must look like https://host:port", unusable=True)
    package = type(error).__module__.partition(".")[0]
    protocol, _, path = str(location).partition("://")
    bucket = path.partition("/")[0]
    answered = None if location.is_local else azure.reason_of(error, bucket)
    if answered is not None:
        return answered
    if not isinstance(error, OSError) and package not in _CLIENT_PACKAGES and not _wraps_wrong_name(error):
        return None
    answered = None if location.is_local else reason_of(error, protocol, bucket)
    if answered is not None:
        return answered
    if isinstance(error, FileNotFoundError):
        return Reason("no such file or directory")
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


def _wraps_wrong_name(error: Exception) -> bool:
    """True for s3fs's error about an impossible name of a bucket or an object."""
    return isinstance(error, ValueError) and type(error.__context__).__name__ == "ParamValidationError"


def _is_wrong_endpoint(error: Exception) -> bool:
    """True for botocore's error about an endpoint; those known from settings were checked before."""
    return isinstance(error, ValueError) and str(error).startswith("Invalid endpoint: ")
