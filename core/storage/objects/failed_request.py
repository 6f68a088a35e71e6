"""What is known of a failed request to an object store, whichever client made it."""

from enum import Enum, auto

from reshard.core.runtime.records import Record
from reshard.core.text.secrets import scrubbed

_MAX_CHARACTERS = 300


class Trouble(Enum):
    """Why there is no answer, or none that says why."""

    UNREACHABLE = auto()
    TIMEOUT = auto()
    CLOSED = auto()
    """The connection, before the answer was complete."""
    UNTRUSTED = auto()
    """The server's certificate."""
    OTHER_PROTOCOL = auto()
    """An answer that no such service gives."""
    REDIRECTED = auto()
    """To no address."""
    WHOLE = auto()
    """The object in place of a part of it."""
    IMPOSSIBLE_KEY = auto()
    """Of another object, in an answer that the client refuses for it."""
    NO_KEYS = auto()
    """None were found, or they cannot be used."""
    NO_IDENTITY = auto()
    """The client has no keys, and the machine has no identity."""
    KEYS_LATER = auto()
    """Those who keep them do not answer."""
    OTHER = auto()
    OTHER_PASSING = auto()


class FailedRequest(Record):
    """A request that failed, and the answer to it.

    Attributes:
        permission: the permission that it needs, as S3 names it.
        is_for_bucket: it names no object.
        status: of HTTP; 0 if there is none.
        code: the service's word for the error; empty if the answer has no body.
        elsewhere: region or endpoint of the bucket, if the service names it.
        trouble: what happened instead of an answer.
        why: the client's words for it.
    """

    permission: str = ""
    is_for_bucket: bool = False
    status: int = 0
    code: str = ""
    message: str = ""
    elsewhere: str = ""
    trouble: Trouble | None = None
    why: str = ""

    @property
    def answer(self) -> str:
        """Code and message, or the status: nothing else of an answer is repeated, since it may be a secret."""
        return one_line(f"{self.code}: {self.message}") if self.code else f"HTTP {self.status}"


def one_line(text: str) -> str:
    """Make a text of a service or a client presentable."""
    return scrubbed(" ".join(text.split()))[:_MAX_CHARACTERS].rstrip(": ")
