"""Reads obstore's errors: a few classes, and a text for all else, which only this module takes apart.

Its first paragraph has the request, the HTTP status, and the answer's body, XML as all services write it; the others
show what is behind it, as Rust's debuggers do.
"""

import re
from urllib.parse import parse_qs, urlsplit

from reshard.core.storage.objects.failed_request import FailedRequest, Trouble, one_line

_BEHIND = "\n\nDebug source:"
_REQUEST = re.compile(r"Error performing (?P<method>[A-Z]+) (?P<url>\S+) in [0-9.]+[^\d\s]*s")
_STATUS = re.compile(r"Server returned non-2xx status code: (?P<status>[0-9]{3})")
_FIELD = re.compile(r"<(?P<name>Code|Message|Region|Endpoint)>(?P<text>[^<]*)</(?P=name)>")
_WHY = re.compile(r" - (?P<why>.*)", re.DOTALL)
_KEYS = re.compile(r"External \S+ credential provider: (?P<class>\w+): (?P<why>.*)", re.DOTALL)
_HIDDEN = "REDACTED"
"""In place of Azure's URLs with a signature."""
_LOGIN = "Error performing token request"
# Azure's deletions go many in a request, each with an answer of its own
_DELETION = re.compile(r"Bulk delete request failed for key .*\(code: (?P<status>[0-9]{3})\)", re.DOTALL)
_LISTED = re.compile("Encountered object with invalid path")
_PATH = re.compile(r'path: "(?P<path>(?:[^"\\]|\\.)*)"')
_KIND = re.compile(r"HttpError \{\s*kind: (?P<kind>\w+)")
_OF_KINDS = {"Connect": Trouble.UNREACHABLE, "Timeout": Trouble.TIMEOUT}
_OF_TEXTS = (
    (re.compile("Received redirect without LOCATION"), Trouble.REDIRECTED),
    (re.compile("Received non-partial response"), Trouble.WHOLE),
    (re.compile("Got invalid|Unable to extract metadata from headers"), Trouble.OTHER_PROTOCOL),
    # while the body of an answer is read
    (re.compile("error decoding response body|request or response body error"), Trouble.CLOSED),
)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&#34;": '"', "&#39;": "'", "&amp;": "&"}


def parse_obstore_error(error: BaseException) -> FailedRequest | None:
    """Return what obstore says of a failed request; None for any other error."""
    text, _, behind = str(error).partition(_BEHIND)
    request = _REQUEST.search(text)
    if not request and type(error).__module__.partition(".")[0] != "obstore":
        return None
    if keys := _KEYS.search(text):
        trouble = Trouble.KEYS_LATER if keys["class"] == "ConnectionError" else Trouble.NO_KEYS
        return FailedRequest(trouble=trouble, why=one_line(keys["why"]))
    if deletion := _DELETION.match(text.partition("error: ")[2]):
        return FailedRequest(permission="DeleteObject", status=int(deletion["status"]))
    if _LISTED.match(text) and (listed := _PATH.search(behind)):
        return FailedRequest(trouble=Trouble.IMPOSSIBLE_KEY, why=one_line(listed["path"]))
    end = request.end() if request else 0
    permission, is_for_bucket = _purpose(request["method"], request["url"]) if request else ("", False)
    status = _STATUS.search(text, end)
    if request and _LOGIN in text:
        return _failed_login(request["method"], int(status["status"]) if status else 0)
    fields = {found["name"]: _unescaped(found["text"]) for found in _FIELD.finditer(text, end)}
    why = _WHY.search(text, end)
    return FailedRequest(
        permission=permission,
        is_for_bucket=is_for_bucket,
        status=int(status["status"]) if status else 0,
        code=fields.get("Code", ""),
        message=fields.get("Message", "").partition("\nRequestId:")[0],
        elsewhere=fields.get("Region") or fields.get("Endpoint", ""),
        trouble=None if status or "Code" in fields else _trouble(text, behind),
        why=one_line(why["why"] if why else text),
    )


def _failed_login(method: str, status: int) -> FailedRequest:
    """Explain a request for a token: POST to who checks credentials, GET to who knows machines."""
    if status >= 500 or (method == "POST" and not status):
        return FailedRequest(trouble=Trouble.KEYS_LATER, why="the service that checks credentials does not answer")
    if method == "POST":
        return FailedRequest(trouble=Trouble.NO_KEYS, why=f"the credentials were refused (HTTP {status})")
    return FailedRequest(trouble=Trouble.NO_IDENTITY)


def _trouble(text: str, behind: str) -> Trouble:
    if "InvalidCertificate" in behind:
        return Trouble.UNTRUSTED
    for words, trouble in _OF_TEXTS:
        if words.search(text):
            return trouble
    kind = _KIND.search(behind)
    return _OF_KINDS.get(kind["kind"], Trouble.CLOSED) if kind else Trouble.OTHER


def _purpose(method: str, url: str) -> tuple[str, bool]:
    """Return the permission that a request needs, and if it is for a bucket."""
    query = parse_qs(urlsplit(url).query, keep_blank_values=True)
    if "list-type" in query or query.get("comp") == ["list"]:
        return "ListBucket", True
    if query.get("comp") == ["batch"] or (method == "POST" and url == _HIDDEN):
        return "DeleteObject", False
    if method == "DELETE":
        return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject", False
    return "GetObject" if method in ("GET", "HEAD") else "PutObject", False


def _unescaped(text: str) -> str:
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    return text
