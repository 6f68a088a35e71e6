"""Writes pickles of plain records, the reverse of `pickled`: no class is needed, and none is asked how.

Protocol 2, which every Python 3 reads.
"""

import struct
from collections.abc import Iterable
from io import BytesIO

from reshard.core.runtime.pickled import Global, Pairs, PersistentId, PickledObject

START, STOP = b"\x80\x02", b"."
_ENCODE = Global("_codecs", "encode")
_SHORT = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}
"""Opcodes that make tuples of what is on the stack; the empty one needs nothing."""


class PickleWriter:
    """A pickle that is put together from fragments: bytes that leave one value on the stack.

    Values that occur often are defined first; fragments then refer to them.
    """

    def __init__(self) -> None:
        self._known: dict[object, bytes] = {}
        self._buffer = BytesIO(START)
        self._buffer.seek(0, 2)
        self.write = self._buffer.write

    def define(self, value: str | Global) -> bytes:
        """Store a text or a name for later fragments, and return the fragment that refers to it.

        Call it between values only, not while a value's fragments are written.
        """
        known = self._known.get(value)
        if known is None:
            number = struct.pack("<I", len(self._known))
            self.write(_fragment(value, {}) + b"r" + number + b"0")
            known = self._known[value] = b"j" + number
        return known

    def fragment(self, value: object) -> bytes:
        """Return the fragment of a value, as `build_pickle` takes it."""
        return _fragment(value, self._known)

    def finish(self) -> bytes:
        """Return the pickle, of which one value is left."""
        self.write(STOP)
        return self._buffer.getvalue()


def build_pickle(value: object) -> bytes:
    """Return the pickle of None, bool, int, float, str, bytes, tuple, list and the records of `pickled`, nested.

    A `PickledObject` with a state is an object that is made without a call, any other is a call.

    Raises:
        TypeError: a value is of another type.
    """
    return START + _fragment(value, {}) + STOP


def integer(value: int) -> bytes:
    """Return the fragment of an int."""
    if 0 <= value < 256:
        return b"K" + bytes((value,))
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    length = value.bit_length() // 8 + 1
    return b"\x8a" + bytes((length,)) + value.to_bytes(length, "little", signed=True)


def attributes(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the opcodes that set attributes of the object on the stack: names and values as fragments."""
    return b"}(" + b"".join(name + value for name, value in items) + b"ub"


def new_object(made_by: bytes) -> bytes:
    """Return the fragment of an object without attributes; its class is a fragment."""
    return made_by + b")\x81"


def _fragment(value: object, known: dict[object, bytes]) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return integer(value)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return known.get(value) or _text(value)
        case bytes():
            # protocol 2 has no bytes: Python writes them so
            return _record(PickledObject(_ENCODE, (value.decode("latin1"), "latin1")), known)
        case Global():
            return known.get(value) or f"c{value.module}\n{value.name}\n".encode()
        case tuple():
            inner = b"".join(_fragment(each, known) for each in value)
            return inner + _SHORT[len(value)] if len(value) in _SHORT else b"(" + inner + b"t"
        case PersistentId():
            return _fragment(value.value, known) + b"Q"
        case PickledObject():
            return _record(value, known)
        case Pairs():
            return b"}" + _items(value, known)
        case list():
            return b"](" + b"".join(_fragment(each, known) for each in value) + b"e"
    raise TypeError(f"no opcode for {type(value).__name__}")


def _record(record: PickledObject, known: dict[object, bytes]) -> bytes:
    made_by, arguments = _fragment(record.made_by, known), _fragment(record.arguments, known)
    pairs = b"" if record.pairs is None else _items(record.pairs, known)
    values = b"" if record.values is None else b"(" + b"".join(_fragment(each, known) for each in record.values) + b"e"
    if record.state is None:
        return made_by + arguments + b"R" + values + pairs
    return made_by + arguments + b"\x81" + values + pairs + _fragment(record.state, known) + b"b"


def _items(pairs: Pairs, known: dict[object, bytes]) -> bytes:
    return b"(" + b"".join(_fragment(each, known) for pair in pairs for each in pair) + b"u"


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data
