"""Reads Python pickles as data: a machine for the opcodes that occur in checkpoints. Nothing is imported or called.

A pickle is a program for a stack machine, and Python's own machine runs what it says: any function of any module. This
one makes plain records of it all. A class or function is a `Global`, its name; what the pickle would construct or call
is a `Record` of the name, the arguments and the state. Names outside a given set are refused, compared as pairs of
module and name: `os.system` reached through a module that imports `os` is another pair.

Memory is bounded by the size of the pickle: an opcode makes at most one object, sharing instead of copying its parts.
"""

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

_MAX_INTEGER_BYTES = 16
_MAX_LINE_BYTES = 4096
_MAX_NAME_CHARACTERS = 120
OPCODE_BYTES = 100
"""Memory for what one byte of a pickle makes: most opcodes with their arguments are longer, and so cost less."""


class PickleError(ValueError):
    """A pickle that is damaged, or that asks for more than data."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class, a function or a constant."""

    module: str
    name: str

    def __str__(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}"


@dataclass(slots=True)
class Record:
    """What the pickle would construct or call: the name, the arguments, and the state that is set afterwards."""

    made_by: Global
    arguments: tuple[object, ...]
    state: object = None


@dataclass(frozen=True, slots=True)
class PersistentId:
    """A reference to something that is stored beside the pickle."""

    value: object


class Pairs(list[tuple[object, object]]):
    """The items of a dict, in order. Keys need not be hashable, and may occur twice."""


def read_pickle(data: bytes, allowed: Collection[tuple[str, str]]) -> object:
    """Return what a pickle describes: None, bool, int, float, str, tuple, list, and the records of this module.

    A list, a `Pairs` or a `Record` may contain itself.

    Args:
        data: the pickle, and nothing after it.
        allowed: (module, name) of the classes, functions and constants that may occur.

    Raises:
        PickleError: it is damaged, has another name or an opcode that is not data; names the offset.
    """
    machine = _Machine(data, frozenset(allowed))
    return machine.run()


_MARK: Final = object()


class _Machine:
    def __init__(self, data: bytes, allowed: frozenset[tuple[str, str]]) -> None:
        self._data = data
        self._position = 0
        self._allowed = allowed
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}
        self._globals: dict[tuple[str, str], Global] = {}
        self._result: object = _MARK

    def run(self) -> object:
        data, size = self._data, len(self._data)
        while self._position < size:
            offset = self._position
            self._position += 1
            operation = _OPERATIONS[data[offset]]
            try:
                if operation is None:
                    raise PickleError(f"has the opcode {_opcode_text(data[offset])}, which checkpoints do not need")
                operation(self)
            except PickleError as error:
                raise PickleError(f"at byte {offset}: {error}") from None
            except (IndexError, struct.error):
                raise PickleError(f"at byte {offset}: it takes more than there is: damaged") from None
            except (ValueError, OverflowError) as error:
                raise PickleError(f"at byte {offset}: {type(error).__name__}: damaged") from None
            if self._result is not _MARK:
                if self._position != size:
                    raise PickleError(f"at byte {self._position}: {size - self._position} bytes follow its end")
                return self._result
        raise PickleError(f"ends at byte {size} without its last opcode: truncated")

    def _take(self, count: int) -> bytes:
        start = self._position
        self._position = start + count
        if self._position > len(self._data):
            raise IndexError
        return self._data[start : self._position]

    def unpack(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack(self._take(layout.size))
        return int(value)

    def _line(self) -> str:
        end = self._data.find(b"\n", self._position, self._position + _MAX_LINE_BYTES)
        if end < 0:
            raise PickleError("has a line without an end: damaged")
        line = self._data[self._position : end]
        self._position = end + 1
        return line.decode()

    def _pop(self) -> object:
        value = self._stack.pop()
        if value is _MARK:
            raise PickleError("takes a mark for a value: damaged")
        return value

    def _pop_to_mark(self) -> list[object]:
        stack = self._stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is _MARK:
                values = stack[place + 1 :]
                del stack[place:]
                return values
        raise PickleError("has no mark to go back to: damaged")

    def _top(self) -> object:
        if self._stack[-1] is _MARK:
            raise PickleError("takes a mark for a value: damaged")
        return self._stack[-1]

    def push(self, value: object) -> None:
        self._stack.append(value)

    # opcodes, by what they do

    def skip_version(self) -> None:
        version = self._take(1)[0]
        if version > 5:
            raise PickleError(f"is of protocol {version}, which Python did not have when this was written")

    def skip_frame(self) -> None:
        self.unpack(_U64)

    def stop(self) -> None:
        self._result = self._pop()
        if self._stack:
            raise PickleError("leaves values behind: damaged")

    def mark(self) -> None:
        self.push(_MARK)

    def pop(self) -> None:
        self._stack.pop()

    def pop_mark(self) -> None:
        self._pop_to_mark()

    def duplicate(self) -> None:
        self.push(self._top())

    def decimal(self) -> None:
        text = self._line().removesuffix("L")
        if text in ("00", "01"):  # bools of protocol 0
            self.push(text == "01")
            return
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 2 * _MAX_INTEGER_BYTES):
            raise PickleError("has a number that is none: damaged")
        self.push(int(text))

    def long_integer(self) -> None:
        self._integer(self._take(1)[0])

    def very_long_integer(self) -> None:
        self._integer(self.unpack(_U32))

    def _integer(self, length: int) -> None:
        if length > _MAX_INTEGER_BYTES:
            raise PickleError(f"has an integer of {length} bytes")
        self.push(int.from_bytes(self._take(length), "little", signed=True))

    def float(self) -> None:
        (value,) = _F64.unpack(self._take(_F64.size))
        self.push(value)

    def line_of_text(self) -> None:
        self.push(self._line())

    def text(self, length: int) -> None:
        if length > len(self._data):
            raise IndexError
        self.push(self._take(length).decode("utf-8", "surrogatepass"))

    def tuple_of_marked(self) -> None:
        self.push(tuple(self._pop_to_mark()))

    def tuple_of(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def list_of_marked(self) -> None:
        self.push(self._pop_to_mark())

    def dict_of_marked(self) -> None:
        self.push(_pairs(self._pop_to_mark()))

    def append(self) -> None:
        value = self._pop()
        self._extend_list([value])

    def append_marked(self) -> None:
        self._extend_list(self._pop_to_mark())

    def _extend_list(self, values: list[object]) -> None:
        target = self._top()
        if type(target) is not list:
            raise PickleError("appends to something that is no list")
        target.extend(values)

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._extend_dict([key, value])

    def set_marked(self) -> None:
        self._extend_dict(self._pop_to_mark())

    def _extend_dict(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, Pairs):
            raise PickleError("sets an item of something that is no dict")
        target.extend(_pairs(values))

    def get(self, number: int) -> None:
        if number not in self._memo:
            raise PickleError(f"asks for memo {number}, which it has not set: damaged")
        self.push(self._memo[number])

    def put(self, number: int) -> None:
        self._memo[number] = self._top()

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get_line(self) -> None:
        self.get(_number(self._line()))

    def put_line(self) -> None:
        self.put(_number(self._line()))

    def global_line(self) -> None:
        module = self._line()
        self._global(module, self._line())

    def global_of_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("names a class by something that is no text")
        self._global(module, name)

    def _global(self, module: str, name: str) -> None:
        key = module, name
        known = self._globals.get(key)
        if known is None:
            if key not in self._allowed:
                text = f"{module}.{name}"
                shown = text if len(text) <= _MAX_NAME_CHARACTERS else f"{text[:_MAX_NAME_CHARACTERS]}…"
                raise PickleError(f"wants {shown!r}, which no checkpoint needs: it was not run")
            known = self._globals[key] = Global(module, name)
        self.push(known)

    def call(self) -> None:
        arguments, made_by = self._pop(), self._pop()
        if not isinstance(made_by, Global) or type(arguments) is not tuple:
            raise PickleError("constructs something by no name, or from no tuple")
        self.push(Record(made_by, arguments))

    def set_state(self) -> None:
        state, target = self._pop(), self._top()
        if not isinstance(target, Record) or target.state is not None:
            raise PickleError("sets the state of something that has none, or a second time")
        target.state = state

    def persistent(self) -> None:
        self.push(PersistentId(self._pop()))


def _pairs(values: list[object]) -> Pairs:
    if len(values) % 2:
        raise PickleError("has a key without a value: damaged")
    return Pairs(zip(values[::2], values[1::2], strict=True))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise PickleError("has a number that is none: damaged")
    return int(text)


def _opcode_text(code: int) -> str:
    return repr(chr(code)) if 0x20 < code < 0x7F else f"{code:#04x}"


_U8, _U16, _I32 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<i")
_U32, _U64, _F64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct(">d")
_Operation = Callable[[_Machine], None]


def _constant(value: object) -> _Operation:
    return lambda machine: machine.push(value)


def _fresh(make: Callable[[], object]) -> _Operation:
    return lambda machine: machine.push(make())


def _packed_integer(layout: struct.Struct) -> _Operation:
    return lambda machine: machine.push(machine.unpack(layout))


def _packed_text(layout: struct.Struct) -> _Operation:
    return lambda machine: machine.text(machine.unpack(layout))


_KNOWN: dict[bytes, _Operation] = {
    b"\x80": _Machine.skip_version,
    b"\x95": _Machine.skip_frame,
    b".": _Machine.stop,
    b"(": _Machine.mark,
    b"0": _Machine.pop,
    b"1": _Machine.pop_mark,
    b"2": _Machine.duplicate,
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"I": _Machine.decimal,
    b"L": _Machine.decimal,
    b"J": _packed_integer(_I32),
    b"K": _packed_integer(_U8),
    b"M": _packed_integer(_U16),
    b"\x8a": _Machine.long_integer,
    b"\x8b": _Machine.very_long_integer,
    b"G": _Machine.float,
    b"V": _Machine.line_of_text,
    b"X": _packed_text(_U32),
    b"\x8c": _packed_text(_U8),
    b"\x8d": _packed_text(_U64),
    b")": _constant(()),
    b"t": _Machine.tuple_of_marked,
    b"\x85": lambda machine: machine.tuple_of(1),
    b"\x86": lambda machine: machine.tuple_of(2),
    b"\x87": lambda machine: machine.tuple_of(3),
    b"]": _fresh(list),
    b"l": _Machine.list_of_marked,
    b"a": _Machine.append,
    b"e": _Machine.append_marked,
    b"}": _fresh(Pairs),
    b"d": _Machine.dict_of_marked,
    b"s": _Machine.set_item,
    b"u": _Machine.set_marked,
    b"g": _Machine.get_line,
    b"h": lambda machine: machine.get(machine.unpack(_U8)),
    b"j": lambda machine: machine.get(machine.unpack(_U32)),
    b"p": _Machine.put_line,
    b"q": lambda machine: machine.put(machine.unpack(_U8)),
    b"r": lambda machine: machine.put(machine.unpack(_U32)),
    b"\x94": _Machine.memoize,
    b"c": _Machine.global_line,
    b"\x93": _Machine.global_of_stack,
    b"R": _Machine.call,
    b"\x81": _Machine.call,
    b"b": _Machine.set_state,
    b"Q": _Machine.persistent,
}
_OPERATIONS: list[_Operation | None] = [_KNOWN.get(bytes([code])) for code in range(256)]
