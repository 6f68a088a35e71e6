"""Limits the memory that parsing metadata takes: headers, records, plans, strategies, indexes and other documents.

Parsed, a document takes up to a hundred times its bytes, and a gzip file unpacks to a thousand times its own. So a
parser first takes the memory that it is about to need, estimated from a count of the document's tokens; beyond
`--memory-limit` (2 GiB where a command has none) the document is refused before it is parsed.

The limit holds for all threads together: a parse that takes more than a small part of it waits until no other large
parse runs. Each estimate exceeds what was measured for any document of its kind, and the measured cost of a real one by
less than two.
"""

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from core.errors import LimitError
from core.runtime.shortage import release_frames
from core.wording import size_text

DEFAULT_LIMIT_BYTES = 2 << 30
SMALLEST_LIMIT_BYTES = 512 << 20
"""Metadata always gets as much, however little the buffers get: 200,000 parameters need not be refused."""

ENTRY_BYTES = 600
"""One parameter of a file's index."""
PARAMETER_BYTES = 2048
"""One parameter of a file's index, and of the plan that is made of it."""

_SMALL_PARTS = 32
"""Up to so small a part of the limit may be taken by parses that run at once; 16 threads together take half of it."""

_LIST_BYTES, _OBJECT_BYTES, _MEMBER_BYTES, _VALUE_BYTES = 100, 100, 180, 70
"""Python's: of a member its key, and the pair that a hook gets; of a value its place in a list as well."""

_RECORD_LIST_BYTES, _RECORD_OBJECT_BYTES, _RECORD_VALUE_BYTES = 320, 700, 150
_UNKNOWN_MEMBER_BYTES = 1800
"""pydantic's: each member that a model does not know becomes an error with its value."""

_MESSAGE_BYTES, _EMPTY_MESSAGE_BYTES = 16, 64
"""protobuf's, for each byte: a message that is not empty has at least four. An empty one ends with a zero byte."""

_limit: ContextVar[int] = ContextVar("reshard_metadata_limit", default=DEFAULT_LIMIT_BYTES)
_large_parse = threading.RLock()


@contextmanager
def metadata_limited(limit_bytes: int) -> Iterator[None]:
    """Inside the block metadata may take so much memory."""
    token = _limit.set(limit_bytes)
    try:
        yield
    finally:
        _limit.reset(token)


def metadata_limit_bytes() -> int:
    """Bytes that metadata may take here."""
    return max(_limit.get(), SMALLEST_LIMIT_BYTES)


def check_metadata(needed_bytes: int, origin: object) -> None:
    """Makes sure that metadata of `origin` may take so much memory.

    Raises:
        LimitError: it may not.
    """
    limit_bytes = metadata_limit_bytes()
    if needed_bytes > limit_bytes:
        raise LimitError(
            f"{origin}: reading its metadata would take {size_text(needed_bytes)} of memory, more than the limit of "
            f"{size_text(limit_bytes)}: damaged, or made to fill the memory. If it is what it should be, raise "
            "--memory-limit"
        )


class Parse:
    """One parse under way, and the memory that it has taken."""

    def __init__(self, origin: object) -> None:
        self._origin = origin
        self._taken_bytes = 0
        self._is_large = False

    def take(self, needed_bytes: int) -> None:
        """Takes memory before it is used; waits for other large parses to end if this one becomes large.

        Raises:
            LimitError: the parse would take more than the limit.
        """
        self._taken_bytes += needed_bytes
        check_metadata(self._taken_bytes, self._origin)
        if not self._is_large and self._taken_bytes > metadata_limit_bytes() // _SMALL_PARTS:
            _large_parse.acquire()
            self._is_large = True

    def end(self) -> None:
        """Lets the next large parse begin."""
        if self._is_large:
            self._is_large = False
            _large_parse.release()


@contextmanager
def parsing(origin: object) -> Iterator[Parse]:
    """The block parses metadata of `origin`, a file's or document's name."""
    parse = Parse(origin)
    try:
        yield parse
    except Exception as error:
        release_frames(error)  # or the error would keep what was parsed, while others are
        raise
    finally:
        parse.end()


def load_json(
    data: bytes, origin: object, *, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """What a JSON document in UTF-8 holds.

    Raises:
        LimitError: it would take too much memory.
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    with parsing(origin) as parse:
        parse.take(json_bytes(data))
        return json.loads(data.decode(), object_pairs_hook=object_pairs_hook)


def json_bytes(data: bytes) -> int:
    """An upper bound for the memory that parsing a JSON document takes."""
    text_width = 1 if data.isascii() else 4  # one wide character makes all of a text wide
    string_width = 4 if text_width > 1 or b"\\u" in data else 1
    return (
        len(data) * (text_width + string_width)
        + data.count(b"[") * _LIST_BYTES
        + data.count(b"{") * _OBJECT_BYTES
        + data.count(b":") * _MEMBER_BYTES
        + data.count(b",") * _VALUE_BYTES
    )


def records_bytes(data: bytes, known: Collection[str]) -> int:
    """An upper bound for the memory that a JSON document of pydantic models with `known` fields takes."""
    unknown = data.count(b":") - sum(data.count(f'"{name}":'.encode()) for name in known)
    return (
        len(data) * 2
        + data.count(b"[") * _RECORD_LIST_BYTES
        + data.count(b"{") * _RECORD_OBJECT_BYTES
        + data.count(b",") * _RECORD_VALUE_BYTES
        + unknown * _UNKNOWN_MEMBER_BYTES
    )


def protobuf_bytes(data: bytes) -> int:
    """An upper bound for the memory that parsing a protobuf message, and what is made of it, takes."""
    return len(data) * _MESSAGE_BYTES + data.count(b"\0") * _EMPTY_MESSAGE_BYTES
