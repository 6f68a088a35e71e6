"""Limits the memory that parsing metadata takes: headers, records, plans, strategies, indexes and other documents.

Parsed, a document takes up to a hundred times its bytes, and a gzip file unpacks to a thousand times its own. So a
parser first takes the memory that it is about to need, estimated from a count of the document's tokens; beyond
the memory limit (2 GiB where a command has none) the document is refused before it is parsed.

The limit holds for all threads together: a parse that takes more than a small part of it waits until no other large
parse runs. Each estimate exceeds what was measured for any document of its kind, and the measured cost of a real one by
less than two.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from reshard.core.errors import InputError, LimitError
from reshard.core.runtime.context import having
from reshard.core.runtime.shortage import release_frames
from reshard.core.runtime.wording import size_text
from reshard.core.text.options import option
from reshard.core.text.printing import printable

DEFAULT_LIMIT_BYTES = 2 << 30
MIN_LIMIT_BYTES = 512 << 20
"""Lower bound of the limit, however little memory the buffers get: enough for 200,000 parameters."""

_MAX_REASON = 200
"""Characters of a reason that a message shows: a name in the document may be of any length."""

PARAMETER_BYTES = 2048
"""Memory for one parameter in a file's index and in the plan built from it."""

_SMALL_FRACTION = 32
"""Parses of up to 1/32 of the limit run at once; 16 threads then take at most half of it."""

_LIST_BYTES, _OBJECT_BYTES, _MEMBER_BYTES, _VALUE_BYTES = 100, 100, 180, 70
"""For Python's json: a member includes its key and the pair passed to a hook, a value its slot in a list."""

_RECORD_LIST_BYTES, _RECORD_OBJECT_BYTES, _RECORD_VALUE_BYTES = 320, 700, 150
_UNKNOWN_MEMBER_BYTES = 1800
"""For pydantic: each unknown member becomes an error that holds its value."""

_MESSAGE_BYTES, _EMPTY_MESSAGE_BYTES = 16, 64
"""For protobuf, per byte: a message that is not empty has at least four; an empty one ends with a zero byte."""

_limit: ContextVar[int] = ContextVar("reshard_metadata_limit", default=DEFAULT_LIMIT_BYTES)
_large_parse = threading.RLock()


def metadata_limited(limit_bytes: int) -> AbstractContextManager[int]:
    """Set the memory limit of metadata inside the block."""
    return having(_limit, limit_bytes)


def metadata_limit_bytes() -> int:
    """The memory limit of metadata in this context."""
    return max(_limit.get(), MIN_LIMIT_BYTES)


def check_metadata(needed_bytes: int, origin: object) -> None:
    """Raise LimitError if metadata of `origin` would exceed the memory limit."""
    limit_bytes = metadata_limit_bytes()
    if needed_bytes > limit_bytes:
        raise LimitError(
            f"{origin}: reading its metadata would take {size_text(needed_bytes)} of memory, more than the limit of "
            f"{size_text(limit_bytes)}: damaged, or made to fill the memory. If it is intact, raise "
            f"{option('memory_limit')}"
        )


class Parse:
    """A parse in progress, and the memory reserved for it."""

    def __init__(self, origin: object) -> None:
        self._origin = origin
        self._taken_bytes = 0
        self._is_large = False

    def take(self, needed_bytes: int) -> None:
        """Reserve memory before it is used; a parse that becomes large waits for other large parses to end."""
        self._taken_bytes += needed_bytes
        check_metadata(self._taken_bytes, self._origin)
        if not self._is_large and self._taken_bytes > metadata_limit_bytes() // _SMALL_FRACTION:
            _large_parse.acquire()
            self._is_large = True

    def end(self) -> None:
        """Release the reservation; the next large parse may begin."""
        if self._is_large:
            self._is_large = False
            _large_parse.release()


@contextmanager
def parsing(origin: object) -> Iterator[Parse]:
    """Parse metadata of `origin`, the name of a file or document, inside the block."""
    parse = Parse(origin)
    try:
        yield parse
    except Exception as error:
        release_frames(error)  # else the error keeps this parse's memory while the next one reserves its own
        raise
    finally:
        parse.end()


class DuplicateKeyError(ValueError):
    """An object of a JSON document has a `key` twice: one of the values would be lost."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"{key!r} occurs twice in one object")


def parse_json(
    data: bytes, origin: object, refusal: type[InputError], *, constants: Callable[[str], Any] | None = None
) -> Any:
    """Parse a JSON document as `load_json` does, and raise a `refusal` that names its `origin` if it is not one.

    Raises:
        LimitError: parsing would exceed the limit.
    """
    try:
        return load_json(data, origin, constants=constants)
    except RecursionError:
        raise refusal(f"{origin}: is not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise refusal(f"{origin}: is not valid JSON: {printable(str(error))[:_MAX_REASON]}") from error


def load_json(data: bytes, origin: object, *, constants: Callable[[str], Any] | None = None) -> Any:
    """Parse a JSON document in UTF-8, within the memory limit.

    `constants` is called with NaN and infinities, such as `refuse_constant`; without it, they are numbers.

    Raises:
        LimitError: parsing would exceed the limit.
        ValueError: the document is not JSON, or an object has a key twice.
        RecursionError: the document is nested too deeply.
    """
    with parsing(origin) as parse:
        parse.take(json_bytes(data))
        return json.loads(data.decode(), object_pairs_hook=unique_keys, parse_constant=constants)


def check_unique_keys(data: bytes) -> None:
    """Check that no object of a JSON document has a key twice; objects are not kept.

    Raises:
        ValueError: one has, or the document is not JSON; NaN and infinities are not.
        RecursionError: the document is nested too deeply.
    """
    json.loads(
        data.decode(), object_pairs_hook=lambda pairs: unique_keys(pairs) and None, parse_constant=refuse_constant
    )


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a JSON document; a DuplicateKeyError if it has a key twice."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise DuplicateKeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return unique


def refuse_constant(name: str) -> Any:
    """Raise ValueError: Python's parser takes NaN and infinities, which JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def json_bytes(data: bytes) -> int:
    """Upper bound of the memory for parsing a JSON document."""
    text_width = 1 if data.isascii() else 4  # one wide character widens the whole str
    string_width = 4 if text_width > 1 or b"\\u" in data else 1
    return (
        len(data) * (text_width + string_width)
        + data.count(b"[") * _LIST_BYTES
        + data.count(b"{") * _OBJECT_BYTES
        + data.count(b":") * _MEMBER_BYTES
        + data.count(b",") * _VALUE_BYTES
    )


def records_bytes(data: bytes, known: Collection[str]) -> int:
    """Upper bound of the memory for parsing a JSON document into pydantic models with `known` fields."""
    unknown = data.count(b":") - sum(data.count(f'"{name}":'.encode()) for name in known)
    return (
        len(data) * 2
        + data.count(b"[") * _RECORD_LIST_BYTES
        + data.count(b"{") * _RECORD_OBJECT_BYTES
        + data.count(b",") * _RECORD_VALUE_BYTES
        + unknown * _UNKNOWN_MEMBER_BYTES
    )


def protobuf_bytes(data: bytes) -> int:
    """Upper bound of the memory for parsing a protobuf message and building our model from it."""
    return len(data) * _MESSAGE_BYTES + data.count(b"\0") * _EMPTY_MESSAGE_BYTES
