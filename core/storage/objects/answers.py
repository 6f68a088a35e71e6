"""Explains failed requests to object stores: refusals by the service, and errors of a client without an answer."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.storage.objects.boto_errors import parse_boto_error
from reshard.core.storage.objects.failed_request import FailedRequest, Trouble
from reshard.core.storage.objects.obstore_errors import parse_obstore_error
from reshard.core.storage.store import NO_FILE, Reason

if TYPE_CHECKING:
    from reshard.core.storage.objects.service import Service

_NO_BUCKET = Reason("there is no {word} {bucket!r}: create it, or name another", unusable=True)
_NO_NAME = Reason("{bucket!r} cannot be a {word}'s name", unusable=True)
_WRONG = Reason("the credentials are wrong ({answer})", unusable=True)
_EXPIRED = Reason("the credentials have expired ({answer}): renew them, then give the same command again")
_DENIED = Reason("access denied: the credentials lack the permission {permission}")
_REFUSED = Reason("access denied: the credentials are wrong, or lack the permission {permission}")
_ELSEWHERE = Reason(
    "the bucket {bucket!r} is in another region or at another endpoint{elsewhere} ({answer})", unusable=True
)
_CHANGED = Reason("it was created or changed by another program meanwhile ({answer})")
_TOO_SHORT = Reason("it ends before the requested bytes ({answer})")
_UNKNOWN = Reason("the server does not support such requests ({answer})")
_GARBLED = Reason("the data sent did not arrive complete ({answer})", transient=True)
_BUSY = Reason("the server is busy, or failed ({answer})", transient=True)
_AT_WORK = Reason("another request is working on it ({answer})", transient=True)

_OF_CODES: Mapping[str, Reason] = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "InvalidBucketName": _NO_NAME,
    "InvalidResourceName": _NO_NAME,
    "NoSuchKey": NO_FILE,
    "BlobNotFound": NO_FILE,
    "NoSuchUpload": Reason("its upload is gone ({answer})", transient=True),
    "AccessDenied": _DENIED,
    "AuthorizationFailure": _REFUSED,
    "AuthorizationPermissionMismatch": _DENIED,
    "InsufficientAccountPermissions": _DENIED,
    "InvalidAccessKeyId": _WRONG,
    "InvalidToken": _WRONG,
    "InvalidSecurity": _WRONG,
    "SignatureDoesNotMatch": _WRONG,
    "AuthenticationFailed": Reason("the credentials are wrong, or have expired ({answer})", unusable=True),
    "InvalidAuthenticationInfo": Reason("the credentials are wrong, or have expired ({answer})", unusable=True),
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": Reason("this machine's clock is too far from the server's ({answer})"),
    "IllegalLocationConstraintException": _ELSEWHERE,
    "PermanentRedirect": _ELSEWHERE,
    "TemporaryRedirect": _ELSEWHERE,
    "Redirect": _ELSEWHERE,
    "VirtualHostDomainRequired": Reason(
        "the server wants the bucket in the host's name ({answer}): use obs://, or addressing_style virtual"
    ),
    "InvalidObjectState": Reason("it is archived: have the storage restore it first ({answer})"),
    "PreconditionFailed": _CHANGED,
    "ConditionNotMet": _CHANGED,
    "InvalidRange": _TOO_SHORT,
    "NotImplemented": _UNKNOWN,
    "OperationAborted": _AT_WORK,
    "ConditionalRequestConflict": _AT_WORK,
    "RequestTimeout": _GARBLED,
    "IncompleteBody": _GARBLED,
    "BadDigest": _GARBLED,
    "XAmzContentSHA256Mismatch": _GARBLED,
    "InternalError": _BUSY,
    "ServiceUnavailable": _BUSY,
    "SlowDown": _BUSY,
}
"""Code of an answer -> its meaning; other codes are reported verbatim."""

_OF_STATUSES: Mapping[int, Reason] = {
    301: _ELSEWHERE,
    307: _ELSEWHERE,
    400: Reason("bad request, without a reason: perhaps expired credentials, or a wrong region"),
    401: _WRONG,
    403: _REFUSED,
    404: NO_FILE,
    408: _GARBLED,
    409: _AT_WORK,
    412: _CHANGED,
    416: _TOO_SHORT,
    501: _UNKNOWN,
}
"""An answer to HEAD has only HTTP's status, which has several meanings."""

IMPOSSIBLE_NAMES = "names with empty parts, `.`, `..` or control characters cannot be used in object stores"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_OF_TROUBLES: Mapping[Trouble, Reason] = {
    Trouble.UNREACHABLE: Reason(
        "{address} cannot be reached: the endpoint is wrong, or it is down{proxy}", transient=True
    ),
    Trouble.TIMEOUT: Reason("{address} did not answer in time", transient=True),
    Trouble.CLOSED: Reason("{address} closed the connection", transient=True),
    Trouble.UNTRUSTED: Reason(
        "the certificate of {address} is not trusted: name a file with its authority as {certificates}", unusable=True
    ),
    Trouble.OTHER_PROTOCOL: Reason(
        "{address} answered with something else than such a storage does: is it the right endpoint?", transient=True
    ),
    Trouble.REDIRECTED: Reason(
        "the bucket {bucket!r} is in another region or at another endpoint: set the region, or the endpoint",
        unusable=True,
    ),
    Trouble.WHOLE: Reason("the server answers requests for parts of objects with the whole: it cannot be read from"),
    Trouble.IMPOSSIBLE_KEY: Reason(
        f"it holds '{{why}}', and {IMPOSSIBLE_NAMES}: rename or remove that, or name another directory"
    ),
    Trouble.NO_KEYS: Reason("{why}", unusable=True),
    Trouble.NO_IDENTITY: Reason("no credentials were found: {no_credentials}", unusable=True),
    Trouble.KEYS_LATER: Reason("{why}", transient=True),
    Trouble.OTHER: Reason("{why}"),
    Trouble.OTHER_PASSING: Reason("{why}", transient=True),
}


def reason_of_answer(error: Exception, service: "Service", bucket: str) -> Reason | None:
    """Explain an error of a client; None for any other error."""
    failed = _parsed(error)
    if failed is None:
        return None
    reason = _OF_TROUBLES[failed.trouble] if failed.trouble else _of_answer(failed)
    words = {
        "answer": failed.answer,
        "bucket": bucket,
        "word": service.bucket_word,
        "permission": _permission(failed.permission, service.protocol),
        "elsewhere": f", {failed.elsewhere}" if failed.elsewhere else "",
        "address": service.address,
        "certificates": service.certificates_word,
        "no_credentials": service.no_credentials,
        "proxy": ", or the proxy that the environment names" if _has_proxy() else "",
        "why": failed.why,
    }
    return replace(reason, text=reason.text.format(**words))


def has_status(error: BaseException, *statuses: int) -> bool:
    """True if an error is an answer with one of these HTTP statuses."""
    failed = _parsed(error)
    return failed is not None and failed.status in statuses


def is_missing_key(error: BaseException) -> bool:
    """True if an answer says that an object does not exist, or not what does not exist."""
    failed = _parsed(error)
    return failed is not None and failed.status == 404 and failed.code in ("", "NoSuchKey", "BlobNotFound")


def _has_proxy() -> bool:
    return any(value and name.lower() in _PROXIES for name, value in os.environ.items())


def _parsed(error: BaseException) -> FailedRequest | None:
    return parse_obstore_error(error) or parse_boto_error(error)


def _of_answer(failed: FailedRequest) -> Reason:
    if failed.code == "AuthorizationHeaderMalformed" and failed.elsewhere:
        return _ELSEWHERE
    if failed.status == 404 and failed.is_for_bucket and not failed.code:
        return _NO_BUCKET
    reason = _OF_CODES.get(failed.code) if failed.code else _OF_STATUSES.get(failed.status)
    if reason is None:
        return _BUSY if failed.status >= 500 or failed.status == 429 else Reason("{answer}")
    return reason


_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_CLOUDS = {
    "gs": {
        "ListBucket": "storage.objects.list",
        "GetObject": "storage.objects.get",
        "PutObject": "storage.objects.create (and storage.objects.delete, if it exists)",
        "AbortMultipartUpload": "storage.multipartUploads.abort",
        "DeleteObject": "storage.objects.delete",
    },
    "abfs": {
        "ListBucket": f"{_BLOBS}/read (of a SAS: r and l)",
        "GetObject": f"{_BLOBS}/read (of a SAS: r and l)",
        "PutObject": f"{_BLOBS}/write (of a SAS: c and w)",
        "DeleteObject": f"{_BLOBS}/delete (of a SAS: d)",
    },
}
"""Permissions of S3, as other clouds name them."""


def _permission(name: str, protocol: str) -> str:
    """Return a permission as the service's administrators know it."""

    def full_name(name: str) -> str:
        if protocol in _CLOUDS:
            return _CLOUDS[protocol].get(name, name)
        if protocol == "obs":
            return f"obs:{'bucket' if 'Bucket' in name else 'object'}:{name}"
        return f"s3:{name}" if protocol == "s3" else name

    if name == "GetObject" and protocol != "abfs":
        # without ListBucket, missing objects are denied, too
        return f"{full_name(name)} (or {full_name('ListBucket')}, if it does not exist)"
    return full_name(name)
