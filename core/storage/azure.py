"""Azure's Blob Storage, through adlfs: how soon its client repeats a request, when a copy is whole, what failures mean.

Errors of the client are recognized by names: its packages need not be installed.
"""

import errno
import time
from typing import Any

from msgspec.structs import replace

from reshard.core.storage.s3_answers import Reason, causes_of
from reshard.core.text.secrets import scrubbed

_FIRST_PAUSE_SECONDS = 0.2
_MORE_SECONDS = 1
_JITTER_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_MAX_CHARACTERS = 300

_DENIED = Reason("access denied: the credentials are wrong, or lack the permission ({answer})")
_NO_FILE = Reason("no such file or directory")
_REASONS = {
    "ContainerNotFound": Reason("there is no container {container!r}: create it, or name another", unusable=True),
    "InvalidResourceName": Reason("{container!r} cannot be a container's name, or the file's is impossible"),
    "BlobNotFound": _NO_FILE,
    "ResourceNotFound": _NO_FILE,
    "AuthenticationFailed": Reason("the credentials are wrong, or have expired ({answer})", unusable=True),
    "InvalidAuthenticationInfo": Reason("the credentials are wrong, or have expired ({answer})", unusable=True),
    "AuthorizationFailure": _DENIED,
    "AuthorizationPermissionMismatch": _DENIED,
    "InsufficientAccountPermissions": _DENIED,
    "ConditionNotMet": Reason("it was created or changed by somebody else meanwhile ({answer})"),
    "InvalidRange": Reason("it ends before the requested bytes ({answer})"),
}
"""Code of an answer -> its meaning; other codes are reported with the answer's first line."""
_NO_CREDENTIALS = Reason(
    "no credentials were found: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and "
    "AZURE_STORAGE_ACCOUNT_KEY, or name storage options that have account_name and account_key ({answer})",
    unusable=True,
)


def is_azure(kind: type) -> bool:
    """True if a filesystem class is adlfs's, or builds on it."""
    return any(base.__name__ == "AzureBlobFileSystem" for base in kind.__mro__)


def shorten_retries(fs: Any) -> None:
    """Let the client behind adlfs repeat a request after 0.2, 1.2 and 1.2 s, instead of some 15, 18 and 24.

    Retries of several layers multiply: a server that cannot be reached was reported after minutes. They are not
    switched off, because nothing else repeats the blocks of an upload. There is no option for them.
    """
    policy: Any = getattr(getattr(fs.service_client, "_config", None), "retry_policy", None)
    if hasattr(policy, "initial_backoff"):
        policy.initial_backoff = _FIRST_PAUSE_SECONDS
        policy.increment_base = _MORE_SECONDS
        policy.random_jitter_range = _JITTER_SECONDS


def await_copy(fs: Any, path: str) -> None:
    """Wait until the storage has made a copy: adlfs does not wait, and the name is there at once."""
    from fsspec.asyn import sync

    while (status := sync(fs.loop, _copy_status, fs, path)) == "pending":
        time.sleep(_LOOK_SECONDS)
    if status not in (None, "success"):
        raise OSError(errno.EIO, f"the storage gave up copying ({status})")


async def _copy_status(fs: Any, path: str) -> str | None:
    container, blob, _ = fs.split_path(path)
    async with fs.service_client.get_blob_client(container, blob) as client:
        copy = (await client.get_blob_properties()).copy
    return None if copy.status is None else str(copy.status)


def reason_of(error: BaseException, container: str) -> Reason | None:
    """Explain an error of Azure's client, or one that adlfs raised in its place; None for any other error."""
    for each in causes_of(error):
        if type(each).__module__.partition(".")[0] == "azure":
            return _reason(each, container)
    return None


def _reason(error: Any, container: str) -> Reason:
    names = {base.__name__ for base in type(error).__mro__}
    code = getattr(error, "error_code", None)
    name = str(getattr(code, "value", code) or "")  # a member of an enumeration, or a text
    line = scrubbed(str(getattr(error, "message", "") or error).strip().partition("\n")[0])[:_MAX_CHARACTERS]
    status = getattr(error, "status_code", None) or 0
    reason = _REASONS.get(name)
    if reason is None and not status and "ClientAuthenticationError" in names:
        reason = _NO_CREDENTIALS
    if reason is None:
        passing = status >= 500 or status == 429 or bool(names & {"ServiceRequestError", "ServiceResponseError"})
        reason = Reason("{answer}", transient=passing)
    answer = f"{name}: {line}" if name else line
    return replace(reason, text=reason.text.format(answer=answer, container=container))
