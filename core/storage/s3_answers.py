"""Explains failed requests of the S3 protocol: refusals by the server, and errors of the client without an answer.

s3fs turns answers into OSErrors and drops most of their content, which the error behind still has. The client's own
errors are recognized by name, because its package need not be installed. Anything but an answer's code and message may
contain a secret.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from reshard.core.runtime.records import Record
from reshard.core.text.secrets import scrubbed


class Reason(Record):
    """The reason why a request failed.

    Attributes:
        transient: True if the request may succeed when repeated.
        unusable: True if no request can succeed with this bucket and these credentials.
    """

    text: str
    transient: bool = False
    unusable: bool = False


_MAX_ANSWER_CHARACTERS = 300
_STATUS = re.compile(r"[0-9]{3}")

_NO_FILE = Reason("no such file or directory")
_NO_BUCKET = Reason("there is no bucket {bucket!r}: create it, or name another", unusable=True)
_NO_NAME = Reason("{bucket!r} cannot be a bucket's name", unusable=True)
_WRONG = Reason("the credentials are wrong ({answer})", unusable=True)
_EXPIRED = Reason("the credentials have expired ({answer}): renew them, then give the same command again")
_DENIED = Reason("access denied: the credentials lack the permission {permission}")
_ELSEWHERE = Reason(
    "the bucket {bucket!r} is in another region or at another endpoint{elsewhere} ({answer})", unusable=True
)
_CHANGED = Reason("it was created or changed by somebody else meanwhile ({answer})")
_TOO_SHORT = Reason("it ends before the requested bytes ({answer})")
_UNKNOWN = Reason("the server does not support such requests ({answer})")
_GARBLED = Reason("the data sent did not arrive complete ({answer})", transient=True)
_BUSY = Reason("the server is busy, or failed ({answer})", transient=True)

_REASONS = {
    "NoSuchBucket": _NO_BUCKET,
    "InvalidBucketName": _NO_NAME,
    "NoSuchKey": _NO_FILE,
    "404": _NO_FILE,
    "AccessDenied": _DENIED,
    # an answer to HEAD has only HTTP's code, which has several meanings
    "403": Reason("access denied: the credentials are wrong, or lack the permission {permission}"),
    "400": Reason("bad request, without a reason: perhaps expired credentials, or a wrong region"),
    "InvalidAccessKeyId": _WRONG,
    "InvalidToken": _WRONG,
    "InvalidSecurity": _WRONG,
    "SignatureDoesNotMatch": _WRONG,
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": Reason("this machine's clock is too far from the server's ({answer})"),
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "PermanentRedirect": _ELSEWHERE,
    "TemporaryRedirect": _ELSEWHERE,
    "Redirect": _ELSEWHERE,
    "301": _ELSEWHERE,
    "307": _ELSEWHERE,
    "VirtualHostDomainRequired": Reason(
        "the server wants the bucket in the host's name ({answer}): use obs://, or addressing_style virtual"
    ),
    "InvalidObjectState": Reason("it is archived: have the storage restore it first ({answer})"),
    "PreconditionFailed": _CHANGED,
    "412": _CHANGED,
    "InvalidRange": _TOO_SHORT,
    "416": _TOO_SHORT,
    "NotImplemented": _UNKNOWN,
    "501": _UNKNOWN,
    "OperationAborted": Reason("another request is working on it ({answer})", transient=True),
    "409": Reason("another request is working on it ({answer})", transient=True),
    "RequestTimeout": _GARBLED,
    "IncompleteBody": _GARBLED,
    "BadDigest": _GARBLED,
    "XAmzContentSHA256Mismatch": _GARBLED,
    "InternalError": _BUSY,
    "ServiceUnavailable": _BUSY,
    "SlowDown": _BUSY,
}
"""Code of an answer -> its meaning; other codes are reported verbatim."""

_PERMISSIONS = {
    "HeadObject": "GetObject",
    "HeadBucket": "ListBucket",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts",
    "DeleteObjects": "DeleteObject",
    "CopyObject": "PutObject, or GetObject on the copied one",
    "UploadPartCopy": "PutObject, or GetObject on the copied one",
}
"""Operation -> the permission that it needs, where the names differ."""


_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
_TRANSIENT_CLIENT_ERRORS = {
    "ConnectionError",
    "HTTPClientError",
    "IncompleteReadError",
    "FlexibleChecksumError",
    "MetadataRetrievalError",
    "ResponseParserError",
}
"""Names of classes, or of their bases; other errors mean wrong settings, and would recur."""


def reason_of(error: BaseException, protocol: str, bucket: str) -> Reason | None:
    """Explain an error of the S3 client or of an answer to it; None for any other error."""
    for each in causes_of(error):
        if isinstance(getattr(each, "response", None), dict) and "Error" in each.response:
            return _reason_of_answer(each.response, getattr(each, "operation_name", ""), protocol, bucket)
        if type(each).__module__.partition(".")[0] in ("botocore", "aiobotocore"):
            return _reason_of_client(each, protocol, bucket)
    return None


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer behind an error; 0 if there is none."""
    responses = (getattr(each, "response", None) for each in causes_of(error))
    return next((_status(response) for response in responses if isinstance(response, dict)), 0)


def causes_of(error: BaseException | None) -> Iterator[Any]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason_of_answer(response: dict[str, Any], operation: str, protocol: str, bucket: str) -> Reason:
    error, metadata = response["Error"], response.get("ResponseMetadata", {})
    code, status = str(error.get("Code", "an unknown error")), _status(response)
    region = error.get("Region") or metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    where = region or error.get("Endpoint")
    reason = _REASONS.get(code)
    if reason is _NO_FILE and "Bucket" in operation:
        reason = _NO_BUCKET
    if code == "AuthorizationHeaderMalformed" and not where:
        reason = None  # malformed in another way
    if reason is None:
        reason = _BUSY if status >= 500 or status == 429 else Reason("{answer}")
    words = {
        "answer": code if _STATUS.fullmatch(code) else _one_line(f"{code}: {error.get('Message', '')}"),
        "bucket": bucket,
        "permission": _permission(operation, protocol),
        "elsewhere": f", {where}" if where else "",
    }
    return replace(reason, text=reason.text.format(**words))


def _status(response: dict[str, Any]) -> int:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status or (int(code) if _STATUS.fullmatch(code) else 0)


def _permission(operation: str, protocol: str) -> str:
    """Return the permission that an operation needs, as the storage's administrators know it."""

    def full_name(name: str) -> str:
        if protocol != "obs":
            return f"s3:{name}"
        return f"obs:{'bucket' if 'Bucket' in name else 'object'}:{name}"

    name = _PERMISSIONS.get(operation, operation)
    if name == "GetObject":
        # without ListBucket, missing objects are denied, too
        return f"{full_name(name)} (or {full_name('ListBucket')}, if it does not exist)"
    return full_name(name)


def _reason_of_client(error: Any, protocol: str, bucket: str) -> Reason:
    names = {base.__name__ for base in type(error).__mro__}
    parts = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
    server = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    text = _one_line(str(error))
    if "ParamValidationError" in names and "bucket name" in text:
        return replace(_NO_NAME, text=_NO_NAME.text.format(bucket=bucket))
    if "NoCredentialsError" in names:
        return Reason(_no_credentials(protocol), unusable=True)
    if "PartialCredentialsError" in names or "CredentialRetrievalError" in names:
        return Reason(f"the credentials cannot be used: {text}", unusable=True)
    if "EndpointConnectionError" in names:
        return Reason(f"{server} cannot be reached: the endpoint is wrong, or it is down", transient=True)
    if names & {"ConnectTimeoutError", "ReadTimeoutError"}:
        return Reason(f"{server} did not answer in time", transient=True)
    if "ConnectionClosedError" in names:
        return Reason(f"{server} closed the connection", transient=True)
    return Reason(text, bool(names & _TRANSIENT_CLIENT_ERRORS) and _CERTIFICATE not in text)


def _no_credentials(protocol: str) -> str:
    if protocol == "obs":
        return "no credentials were found: set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY, or name storage options"
    return (
        "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
        "or name storage options that have key and secret"
    )


def _one_line(text: str) -> str:
    return scrubbed(" ".join(text.split()))[:_MAX_ANSWER_CHARACTERS].rstrip(": ")
