"""Explains failed requests to object stores: refusals by the service, and errors of the client without an answer.

obstore has a few classes of errors, and says all else in a text: the request, the HTTP status, and the answer's body,
XML as all services write it. Anything but an answer's code and message may contain a secret.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.runtime.records import Record
from reshard.core.storage.store import NO_FILE, Reason
from reshard.core.text.secrets import scrubbed

if TYPE_CHECKING:
    from reshard.core.storage.objects.service import Service

_MAX_ANSWER_CHARACTERS = 300
_DETAILS = "\n\nDebug source:"
_REQUEST = re.compile(r"Error performing (?P<method>[A-Z]+) (?P<url>\S+) in \S+")
_STATUS = re.compile(r"status code: (?P<status>[0-9]{3})")
_FIELD = re.compile(r"<(?P<name>Code|Message|Region|Endpoint|Condition)>(?P<text>[^<]*)</(?P=name)>")
_WHY = re.compile(r" - (?P<why>.*)", re.DOTALL)


class Answer(Record):
    """What is known of a failed request.

    Attributes:
        method: GET, PUT, …; empty if no request was made.
        is_listing: the request was for the bucket itself.
        status: of HTTP; 0 if no answer came.
        code: the service's word for the error; empty without a body.
        why: the client's words, where there is no answer.
        kind: Connect, Timeout, Request or the like, where there is no answer.
        is_certificate: the server's certificate is not trusted.
    """

    why: str
    method: str = ""
    is_listing: bool = False
    status: int = 0
    code: str = ""
    message: str = ""
    elsewhere: str = ""
    kind: str = ""
    is_certificate: bool = False

    @property
    def text(self) -> str:
        """Code and message, or the status."""
        return _one_line(f"{self.code}: {self.message}") if self.code else f"HTTP {self.status}"


_NO_BUCKET = Reason("there is no {word} {bucket!r}: create it, or name another", unusable=True)
_NO_NAME = Reason("{bucket!r} cannot be a {word}'s name", unusable=True)
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
    "AuthorizationFailure": _DENIED,
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
    403: Reason("access denied: the credentials are wrong, or lack the permission {permission}"),
    404: NO_FILE,
    408: _GARBLED,
    409: _AT_WORK,
    412: _CHANGED,
    416: _TOO_SHORT,
    501: _UNKNOWN,
}
"""An answer to HEAD has only HTTP's status, which has several meanings."""

_KIND = re.compile(r"HttpError \{\s*kind: (?P<kind>\w+)")
_CERTIFICATE = "InvalidCertificate"
_NO_REDIRECT = "Received redirect without LOCATION"
_WHOLE_ANSWER = "Received non-partial response"
_PASSING = re.compile(r"error sending request|error decoding response body|request or response body error")
"""What the client says of failures that another attempt may not meet."""
_OWN_ERROR = re.compile(r"External \S+ credential provider: \w+: (?P<why>.*)")


def reason_of_answer(error: Exception, service: "Service", bucket: str) -> Reason | None:
    """Explain an error of obstore; None for any other error."""
    answer = answer_of(error)
    if answer is None:
        return None
    reason = _of_answer(answer) if answer.status else _without_answer(answer, service)
    words = {
        "answer": answer.text,
        "bucket": bucket,
        "word": service.bucket_word,
        "permission": _permission(answer, service.protocol),
        "elsewhere": f", {answer.elsewhere}" if answer.elsewhere else "",
    }
    return replace(reason, text=reason.text.format(**words))


def answer_of(error: BaseException) -> Answer | None:
    """Return what obstore says of a failed request; None for any other error."""
    if type(error).__module__.partition(".")[0] != "obstore" and _REQUEST.search(str(error)) is None:
        return None
    text, _, details = str(error).partition(_DETAILS)
    kind = _KIND.search(details)
    request = _REQUEST.search(text)
    begin = request.end() if request else 0
    status = _STATUS.search(text, begin)
    fields = {found["name"]: found["text"] for found in _FIELD.finditer(text, begin)}
    why = _WHY.search(text, begin)
    return Answer(
        why=_one_line(why["why"] if why else text),
        method=request["method"] if request else "",
        is_listing=request is not None and _is_listing(request["url"]),
        status=int(status["status"]) if status else 0,
        code=fields.get("Code", ""),
        message=fields.get("Message", ""),
        elsewhere=fields.get("Region") or fields.get("Endpoint", ""),
        kind=kind["kind"] if kind else "",
        is_certificate=_CERTIFICATE in details,
    )


def has_status(error: BaseException, *statuses: int) -> bool:
    """True if an error is an answer with one of these HTTP statuses."""
    answer = answer_of(error)
    return answer is not None and answer.status in statuses


def is_missing_key(error: BaseException) -> bool:
    """True if an answer says that an object does not exist, or not what does not exist."""
    answer = answer_of(error)
    return answer is not None and answer.status == 404 and answer.code in ("", "NoSuchKey", "BlobNotFound")


def _is_listing(url: str) -> bool:
    return "list-type=" in url or "comp=list" in url


def _of_answer(answer: Answer) -> Reason:
    if answer.code == "AuthorizationHeaderMalformed" and answer.elsewhere:
        return _ELSEWHERE
    reason = _OF_CODES.get(answer.code)
    if reason is None and not answer.code:
        reason = _NO_BUCKET if answer.status == 404 and answer.is_listing else _OF_STATUSES.get(answer.status)
    if reason is None:
        return _BUSY if answer.status >= 500 or answer.status == 429 else Reason("{answer}")
    return reason


def _without_answer(answer: Answer, service: "Service") -> Reason:
    if answer.is_certificate:
        return Reason(f"{service.address} has a certificate that is not trusted: name its authority")
    if _NO_REDIRECT in answer.why:
        return replace(_ELSEWHERE, text=_ELSEWHERE.text.replace(" ({answer})", ""))
    if _WHOLE_ANSWER in answer.why:
        return Reason("the server answers requests for parts of objects with the whole: it cannot be read from")
    if answer.kind == "Connect":
        return Reason(f"{service.address} cannot be reached: the endpoint is wrong, or it is down", transient=True)
    if answer.kind == "Timeout":
        return Reason(f"{service.address} did not answer in time", transient=True)
    if answer.kind:
        return Reason(f"{service.address} closed the connection, or answered with something else", transient=True)
    own = _OWN_ERROR.search(answer.why)
    if own:
        return Reason(own["why"].replace("{", "{{").replace("}", "}}"), unusable=True)
    return Reason(answer.why.replace("{", "{{").replace("}", "}}"), transient=bool(_PASSING.search(answer.why)))


_PERMISSIONS = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject"}


def _permission(answer: Answer, protocol: str) -> str:
    """Return the permission that a request needs, as the service's administrators know it."""

    def full_name(name: str) -> str:
        if protocol == "obs":
            return f"obs:{'bucket' if 'Bucket' in name else 'object'}:{name}"
        return f"s3:{name}" if protocol == "s3" else name

    name = "ListBucket" if answer.is_listing else _PERMISSIONS.get(answer.method, "DeleteObject")
    if name == "GetObject":
        # without ListBucket, missing objects are denied, too
        return f"{full_name(name)} (or {full_name('ListBucket')}, if it does not exist)"
    return full_name(name)


def _one_line(text: str) -> str:
    return scrubbed(" ".join(text.split()))[:_MAX_ANSWER_CHARACTERS].rstrip(": ")
