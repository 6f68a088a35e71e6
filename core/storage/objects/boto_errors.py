"""Reads errors of AWS's own client, by the names of their classes: its packages are loaded only where needed."""

from typing import Any

from reshard.core.storage.objects.failed_request import FailedRequest, Trouble, one_line

_PACKAGES = ("botocore", "boto3", "s3transfer")
_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
_TROUBLES = {
    "NoCredentialsError": Trouble.NO_KEYS,
    "PartialCredentialsError": Trouble.NO_KEYS,
    "CredentialRetrievalError": Trouble.NO_KEYS,
    "EndpointConnectionError": Trouble.UNREACHABLE,
    "ConnectTimeoutError": Trouble.TIMEOUT,
    "ReadTimeoutError": Trouble.TIMEOUT,
    "ConnectionClosedError": Trouble.CLOSED,
    "ResponseParserError": Trouble.OTHER_PROTOCOL,
}
_PASSING = {"ConnectionError", "HTTPClientError", "IncompleteReadError", "MetadataRetrievalError"}
"""Names of classes, or of their bases; other errors mean wrong settings, and would recur."""
_PERMISSIONS = {
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts",
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "CopyObject": "PutObject, or GetObject on the copied one",
    "UploadPartCopy": "PutObject, or GetObject on the copied one",
}
"""Operation -> the permission that it needs, where the names differ."""


def parse_boto_error(error: BaseException) -> FailedRequest | None:
    """Return what AWS's client says of a failed request; None for any other error."""
    if type(error).__module__.partition(".")[0] not in _PACKAGES:
        return None
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return _of_answer(response, getattr(error, "operation_name", ""))
    return FailedRequest(trouble=_trouble(error), why=one_line(str(error)))


def is_passing(error: BaseException) -> bool:
    """True if another attempt may succeed."""
    return bool(_names(error) & _PASSING) and _CERTIFICATE not in str(error)


def _of_answer(response: dict[str, Any], operation: str) -> FailedRequest:
    error, metadata = response["Error"], response.get("ResponseMetadata", {})
    code, status = str(error.get("Code", "")), int(metadata.get("HTTPStatusCode", 0))
    return FailedRequest(
        permission=_PERMISSIONS.get(operation, operation),
        is_for_bucket=operation == "ListMultipartUploads",
        status=status,
        # of an answer without a body the code is the status
        code="" if code.isdigit() else code,
        message=str(error.get("Message", "")),
        elsewhere=error.get("Region") or error.get("Endpoint", ""),
    )


def _trouble(error: BaseException) -> Trouble:
    if _CERTIFICATE in str(error):
        return Trouble.UNTRUSTED
    names = _names(error)
    found = next((trouble for name, trouble in _TROUBLES.items() if name in names), None)
    return found or (Trouble.OTHER_PASSING if is_passing(error) else Trouble.OTHER)


def _names(error: BaseException) -> set[str]:
    return {base.__name__ for base in type(error).__mro__}
