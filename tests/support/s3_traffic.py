"""Requests to S3, as a proxy sees them: what each asks for, what became of it, and which are to go wrong."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit

_OF_OBJECTS = {
    ("GET", "uploadId"): "ListParts",
    ("PUT", "partNumber"): "UploadPart",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", ""): "GetObject",
    ("HEAD", ""): "HeadObject",
    ("PUT", ""): "PutObject",
    ("DELETE", ""): "DeleteObject",
}
_OF_BUCKETS = {
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "list-type"): "ListObjectsV2",
    ("GET", "location"): "GetBucketLocation",
    ("POST", "delete"): "DeleteObjects",
    ("GET", ""): "ListObjects",
    ("HEAD", ""): "HeadBucket",
    ("PUT", ""): "CreateBucket",
    ("DELETE", ""): "DeleteBucket",
}
_COPIES = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}


@dataclass(frozen=True)
class Call:
    """What a request asks for.

    Attributes:
        operation: by S3's name: GetObject, UploadPart.
        range: its header, bytes=0-99; empty: none.
        part: of an upload; 0: none.
        if_match: the etag that the object must have; empty: any.
    """

    method: str
    host: str
    operation: str
    bucket: str
    key: str = ""
    range: str = ""
    part: int = 0
    if_match: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """What a repetition has in common with it, and the same request of another run."""
        return self.operation, self.bucket, self.key, self.range, str(self.part)


def parse_call(method: str, target: str, headers: dict[str, str], *, virtual_hosts: bool) -> Call:
    """What a request with such a target (path and query) asks for; names of headers are in lower case."""
    url = urlsplit(target)
    host = headers.get("host", "")
    path = unquote(url.path).lstrip("/")
    bucket, _, key = (host.partition(".")[0], "", path) if virtual_hosts else path.partition("/")
    query = parse_qs(url.query, keep_blank_values=True)
    operation = "ListBuckets" if not bucket else _operation(method, query, _OF_OBJECTS if key else _OF_BUCKETS)
    if "x-amz-copy-source" in headers:
        operation = _COPIES.get(operation, operation)
    part = int(query.get("partNumber", ["0"])[0])
    return Call(method, host, operation, bucket, key, headers.get("range", ""), part, headers.get("if-match", ""))


def _operation(method: str, query: dict[str, list[str]], names: dict[tuple[str, str], str]) -> str:
    return next((name for (of, key), name in names.items() if of == method and (not key or key in query)), method)


@dataclass
class Exchange:
    """A request and what became of it.

    Attributes:
        number: it is the number-th of its operation, beginning with 1, in the order in which they came.
        attempt: it is the attempt-th that asks for just this: above 1 it is a repetition, mostly.
        status: of the answer; 0: there was none.
        received_bytes: of the request's body, as far as it came.
        sent_bytes: of the answer's body, as far as it was sent.
        fault: what was made to go wrong.
        began: when it had come, on the monotonic clock, in seconds.
        ended: when it was answered.
    """

    call: Call
    number: int
    attempt: int
    began: float
    ended: float = 0.0
    status: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    fault: "Kind | None" = None


@dataclass(frozen=True)
class S3Error:
    """An answer that is an error."""

    status: int
    code: str

    def body(self, call: Call) -> bytes:
        """As S3 words it."""
        text = f"<Error><Code>{self.code}</Code><Message>{call.operation} is made to fail</Message></Error>"
        return b'<?xml version="1.0" encoding="UTF-8"?>\n' + text.encode()


class Kind(Enum):
    """What goes wrong."""

    SLOW_DOWN = S3Error(503, "SlowDown")
    INTERNAL_ERROR = S3Error(500, "InternalError")
    ERROR_AFTER_OK = S3Error(200, "InternalError")
    """As it may happen to CopyObject and CompleteMultipartUpload, which begin to answer before they are done."""
    ACCESS_DENIED = S3Error(403, "AccessDenied")
    EXPIRED_TOKEN = S3Error(400, "ExpiredToken")
    NO_SUCH_BUCKET = S3Error(404, "NoSuchBucket")
    CONDITION_FAILED = S3Error(412, "PreconditionFailed")
    CONFLICT = S3Error(409, "ConditionalRequestConflict")
    NOT_IMPLEMENTED = S3Error(501, "NotImplemented")
    RESET = "the connection is reset, the request is not carried out"
    ANSWER_LOST = "the connection is reset, the request was carried out"
    RESET_IN_BODY = "the connection is reset after half of the answer's body"
    SHORT_BODY = "the connection is closed after half of the answer's body"
    SILENCE = "no answer, the request is not carried out"


@dataclass(frozen=True)
class Fault:
    """Requests that go wrong. The same seed hits the same requests, whatever the threads do.

    Attributes:
        kind: what goes wrong.
        operations: of which kinds of requests; empty: all.
        applies: says which of these may be hit.
        probability: for each request that may be.
        seed: of what is random.
        most: no more than this many.
        seconds: of silence, until the connection is closed.
    """

    kind: Kind
    operations: tuple[str, ...] = ()
    applies: Callable[[Exchange], bool] = lambda exchange: True
    probability: float = 1.0
    seed: int = 0
    most: int = 10**9
    seconds: float = 60.0

    def may_hit(self, exchange: Exchange) -> bool:
        """Whether it hits a request, if it has not hit enough already."""
        if self.operations and exchange.call.operation not in self.operations:
            return False
        chance = random.Random(f"{self.seed} {exchange.call.asked} {exchange.attempt}").random()
        return chance < self.probability and self.applies(exchange)


@dataclass
class Faults:
    """Rules, and how often each has been used; the first that hits a request is taken."""

    rules: tuple[Fault, ...] = ()
    _hits: dict[int, int] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def strike(self, exchange: Exchange) -> Fault | None:
        """What goes wrong with a request, if anything."""
        with self._lock:
            for index, rule in enumerate(self.rules):
                hits = self._hits.get(index, 0)
                if hits < rule.most and rule.may_hit(exchange):
                    self._hits[index] = hits + 1
                    return rule
        return None
