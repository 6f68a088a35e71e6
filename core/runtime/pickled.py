"""Reads Python pickles as data: a machine for the opcodes that occur in checkpoints. Nothing is imported or called.

A pickle is a program for a stack machine, and Python's own machine runs what it says: any function of any module. This
one makes plain records of it all. A class or function is a `Global`, its name; what the pickle would construct or call
is a `PickledObject` of the name, the arguments and the state. Names outside a given set are refused, compared as pairs
of module and name: `os.system` reached through a module that imports `os` is another pair.

Memory is bounded by the size of the pickle: an opcode makes at most one object, sharing instead of copying its parts.
The opcodes of one byte that make one are few in any real pickle, so one that is full of them is refused unread.
"""

import struct
from collections.abc import Callable, Collection, Sequence
from typing import cast

from msgspec import Struct

from reshard.core.runtime.records import Record

_MAX_INTEGER_BYTES = 32
_MAX_LINE_BYTES = 4096
_MAX_NAME_CHARACTERS = 120
OPCODE_BYTES = 100
"""Memory for what one byte of a pickle makes: most opcodes with their arguments are longer, and so cost less."""
_MAKING = b"(]}R\x81\x85\x86\x87\x94Q"
"""Opcodes without arguments that take memory: a mark, collections, records, places in the memo."""
_MOST_MAKING, _FEW_MAKING = 0.4, 4096
"""They are up to 0.30 of the pickles that torch writes: of many chunks, in protocol 4."""


class PickleError(ValueError):
    """A pickle that is damaged, or that asks for more than data."""


class ForeignNameError(PickleError):
    """A pickle that has a name which is not allowed; `module` is its module."""

    def __init__(self, message: str, module: str) -> None:
        """Keep the module beside the message."""
        super().__init__(message)
        self.module = module


class Global(Record):
    """The name of a class, a function or a constant."""

    module: str
    name: str

    def __str__(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}"


class Pairs(list[tuple[object, object]]):
    """The items of a dict, in order. Keys need not be hashable, and may occur twice."""


class PickledObject(Struct):
    """What the pickle would construct or call: the name, the arguments, and what is set afterwards.

    Attributes:
        pairs: items of a class of dicts.
        values: what is appended to a class of lists, or added to one of sets.
    """

    made_by: Global
    arguments: tuple[object, ...]
    state: object = None
    pairs: Pairs | None = None
    values: list[object] | None = None


class PersistentId(Record):
    """A reference to something that is stored beside the pickle."""

    value: object


def read_pickle(data: bytes, allowed: Collection[tuple[str, str]]) -> object:
    """Return what a pickle describes: None, bool, int, float, str, tuple, list, and the records of this module.

    A list, a `Pairs` or a `PickledObject` may contain itself.

    Args:
        data: the pickle, and nothing after it.
        allowed: (module, name) of the classes, functions and constants that may occur.

    Raises:
        PickleError: it is damaged, has another name or an opcode that is not data; names the offset.
    """
    _check_making(data)
    return _Machine(data, frozenset(allowed)).run()


def read_objects(data: bytes) -> object:
    """Return what a pickle describes, as `read_pickle` does, with bytes and with objects of any name.

    It is for the caller to judge the names. Sets are a `PickledObject` of theirs, with `values`.

    Raises:
        PickleError: it is damaged, or has an opcode that is not data; names the offset.
    """
    _check_making(data)
    return _ObjectMachine(data, frozenset()).run()


def _check_making(data: bytes) -> None:
    if sum(map(data.count, _MAKING)) > _MOST_MAKING * len(data) + _FEW_MAKING:
        raise PickleError("is full of opcodes that make objects without contents: damaged, or made to fill the memory")


class _Machine:
    """The stack machine. A mark starts a stack of its own, above those in `_below`."""

    __slots__ = ("_allowed", "_below", "_data", "_globals", "_memo", "_position", "_stack")

    def __init__(self, data: bytes, allowed: frozenset[tuple[str, str]]) -> None:
        self._data = data
        self._position = 0
        self._allowed = allowed
        self._stack: list[object] = []
        self._below: list[list[object]] = []
        self._memo: dict[int, object] = {}
        self._globals: dict[tuple[str, str], Global] = {}

    def run(self) -> object:
        data, size, operations = self._data, len(self._data), self.operations()
        offset = 0
        try:
            # millions of turns for a large checkpoint
            while (offset := self._position) < size:
                self._position = offset + 1
                code = data[offset]
                if code == _STOP:
                    return self._result()
                operations[code](self)
        except PickleError as error:
            error.args = (f"at byte {offset}: {error}",)
            raise
        except (IndexError, struct.error):
            raise PickleError(f"at byte {offset}: it takes more than there is: damaged") from None
        except KeyError as error:
            raise PickleError(f"at byte {offset}: asks for memo {error}, which it has not set: damaged") from None
        except (ValueError, OverflowError) as error:
            raise PickleError(f"at byte {offset}: {type(error).__name__}: damaged") from None
        raise PickleError(f"ends at byte {size} without its last opcode: truncated")

    def operations(self) -> Sequence["_Operation"]:
        """What each opcode does."""
        return _OPERATIONS

    def _result(self) -> object:
        result = self._stack.pop()
        if self._stack or self._below:
            raise PickleError("leaves values behind: damaged")
        if self._position != len(self._data):
            raise PickleError(f"{len(self._data) - self._position} bytes follow its end")
        return result

    def _take(self, count: int) -> bytes:
        start = self._position
        self._position = start + count
        if self._position > len(self._data):
            raise IndexError
        return self._data[start : self._position]

    def unpack(self, layout: struct.Struct) -> int:
        start = self._position
        self._position = start + layout.size
        value: int = layout.unpack_from(self._data, start)[0]
        return value

    def byte(self) -> int:
        start = self._position
        self._position = start + 1
        return self._data[start]

    def _line(self) -> str:
        end = self._data.find(b"\n", self._position, self._position + _MAX_LINE_BYTES)
        if end < 0:
            raise PickleError("has a line without an end: damaged")
        line = self._data[self._position : end]
        self._position = end + 1
        return line.decode()

    def _pop_to_mark(self) -> list[object]:
        if not self._below:
            raise PickleError("has no mark to go back to: damaged")
        values, self._stack = self._stack, self._below.pop()
        return values

    def push(self, value: object) -> None:
        self._stack.append(value)

    # opcodes, by what they do

    def skip_version(self) -> None:
        version = self._take(1)[0]
        if version > 5:
            raise PickleError(f"is of protocol {version}, which Python did not have when this was written")

    def skip_frame(self) -> None:
        self.unpack(_U64)

    def refuse(self) -> None:
        code = self._data[self._position - 1]
        raise PickleError(f"has the opcode {_opcode_text(code)}, which checkpoints do not need")

    def mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_to_mark()

    def pop_mark(self) -> None:
        self._pop_to_mark()

    def duplicate(self) -> None:
        self._stack.append(self._stack[-1])

    def decimal(self) -> None:
        text = self._line().removesuffix("L")
        if text in ("00", "01"):  # bools of protocol 0
            self.push(text == "01")
            return
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 2 * _MAX_INTEGER_BYTES):
            raise PickleError("has an invalid number: damaged")
        self.push(int(text))

    def small_integer(self) -> None:
        start = self._position
        self._position = start + 1
        self._stack.append(self._data[start])

    def signed_integer(self) -> None:
        start = self._position
        self._position = start + 4
        self._stack.append(_I32.unpack_from(self._data, start)[0])

    def long_integer(self) -> None:
        self._integer(self.byte())

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

    def empty_tuple(self) -> None:
        self._stack.append(())

    def tuple_of_marked(self) -> None:
        self.push(tuple(self._pop_to_mark()))

    def tuple_of(self, count: int) -> None:
        stack = self._stack
        if len(stack) < count:
            raise IndexError
        stack[-count:] = [tuple(stack[-count:])]

    def list_of_marked(self) -> None:
        self.push(self._pop_to_mark())

    def empty_list(self) -> None:
        self._stack.append([])

    def empty_dict(self) -> None:
        self._stack.append(Pairs())

    def dict_of_marked(self) -> None:
        pairs = Pairs()
        _extend_pairs(pairs, self._pop_to_mark())
        self.push(pairs)

    def append(self) -> None:
        self._extend_list([self._stack.pop()])

    def append_marked(self) -> None:
        self._extend_list(self._pop_to_mark())

    def _extend_list(self, values: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise PickleError("appends to something that is not a list")
        target.extend(values)

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._extend_dict([key, value])

    def set_marked(self) -> None:
        self._extend_dict(self._pop_to_mark())

    def _extend_dict(self, values: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is not Pairs:
            raise PickleError("sets an item of something that is not a dict")
        _extend_pairs(target, values)

    def get(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def get_short(self) -> None:
        start = self._position
        self._position = start + 1
        self._stack.append(self._memo[self._data[start]])

    def get_long(self) -> None:
        start = self._position
        self._position = start + 4
        self._stack.append(self._memo[_U32.unpack_from(self._data, start)[0]])

    def put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get_line(self) -> None:
        self.get(_number(self._line()))

    def put_line(self) -> None:
        self.put(_number(self._line()))

    def global_line(self) -> None:
        module = self._line()
        self._global(module, self._line())

    def global_of_stack(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("names a class by something that is not text")
        self._global(module, name)

    def _global(self, module: str, name: str) -> None:
        key = module, name
        known = self._globals.get(key)
        if known is None:
            if not self._is_allowed(key):
                text = f"{module}.{name}"
                shown = text if len(text) <= _MAX_NAME_CHARACTERS else f"{text[:_MAX_NAME_CHARACTERS]}…"
                raise ForeignNameError(f"wants {shown!r}, which no checkpoint needs: it was not run", module)
            known = self._globals[key] = Global(module, name)
        self.push(known)

    def _is_allowed(self, key: tuple[str, str]) -> bool:
        return key in self._allowed

    def call(self) -> None:
        arguments, made_by = self._stack.pop(), self._stack.pop()
        if type(made_by) is PickledObject:
            # only what is short when written out: lists in a list may double at each level
            names = ", ".join(str(each) for each in made_by.arguments if isinstance(each, Global | str))
            raise PickleError(f"constructs something without a name, by {made_by.made_by} of {names[:200]!r}")
        if type(made_by) is not Global or type(arguments) is not tuple:
            raise PickleError("constructs something without a name, or not from a tuple")
        self._stack.append(PickledObject(made_by, arguments))

    def set_state(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if type(target) is not PickledObject or target.state is not None:
            raise PickleError("sets the state of something that has none, or a second time")
        target.state = state

    def persistent(self) -> None:
        self._stack.append(PersistentId(self._stack.pop()))


class _ObjectMachine(_Machine):
    """The machine for objects of any class."""

    __slots__ = ()

    def operations(self) -> Sequence["_Operation"]:
        return _OBJECT_OPERATIONS

    def _is_allowed(self, key: tuple[str, str]) -> bool:
        return True

    def _extend_list(self, values: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is PickledObject:
            target.values = target.values or []
            target.values.extend(values)
        else:
            super()._extend_list(values)

    def _extend_dict(self, values: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is PickledObject:
            target.pairs = target.pairs or Pairs()
            _extend_pairs(target.pairs, values)
        else:
            super()._extend_dict(values)

    def bytes(self, length: int) -> None:
        if length > len(self._data):
            raise IndexError
        self.push(self._take(length))

    def empty_set(self) -> None:
        self.push(PickledObject(_SET, (), values=[]))

    def frozen_set_of_marked(self) -> None:
        self.push(PickledObject(_FROZEN_SET, (), values=self._pop_to_mark()))


def _extend_pairs(pairs: Pairs, values: list[object]) -> None:
    if len(values) % 2:
        raise PickleError("has a key without a value: damaged")
    one_by_one = iter(values)
    pairs.extend(zip(one_by_one, one_by_one, strict=True))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise PickleError("has an invalid number: damaged")
    return int(text)


def _opcode_text(code: int) -> str:
    return repr(chr(code)) if 0x20 < code < 0x7F else f"{code:#04x}"


_U8, _U16, _I32 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<i")
_U32, _U64, _F64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct(">d")
_Operation = Callable[[_Machine], None]


def _constant(value: object) -> _Operation:
    return lambda machine: machine.push(value)


_STOP = ord(".")
_SET, _FROZEN_SET = Global("builtins", "set"), Global("builtins", "frozenset")


def _packed_integer(layout: struct.Struct) -> _Operation:
    return lambda machine: machine.push(machine.unpack(layout))


def _packed_text(layout: struct.Struct) -> _Operation:
    return lambda machine: machine.text(machine.unpack(layout))


_KNOWN: dict[bytes, _Operation] = {
    b"\x80": _Machine.skip_version,
    b"\x95": _Machine.skip_frame,
    b"(": _Machine.mark,
    b"0": _Machine.pop,
    b"1": _Machine.pop_mark,
    b"2": _Machine.duplicate,
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"I": _Machine.decimal,
    b"L": _Machine.decimal,
    b"J": _Machine.signed_integer,
    b"K": _Machine.small_integer,
    b"M": _packed_integer(_U16),
    b"\x8a": _Machine.long_integer,
    b"\x8b": _Machine.very_long_integer,
    b"G": _Machine.float,
    b"V": _Machine.line_of_text,
    b"X": _packed_text(_U32),
    b"\x8c": _packed_text(_U8),
    b"\x8d": _packed_text(_U64),
    b")": _Machine.empty_tuple,
    b"t": _Machine.tuple_of_marked,
    b"\x85": lambda machine: machine.tuple_of(1),
    b"\x86": lambda machine: machine.tuple_of(2),
    b"\x87": lambda machine: machine.tuple_of(3),
    b"]": _Machine.empty_list,
    b"l": _Machine.list_of_marked,
    b"a": _Machine.append,
    b"e": _Machine.append_marked,
    b"}": _Machine.empty_dict,
    b"d": _Machine.dict_of_marked,
    b"s": _Machine.set_item,
    b"u": _Machine.set_marked,
    b"g": _Machine.get_line,
    b"h": _Machine.get_short,
    b"j": _Machine.get_long,
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
_OBJECTS: dict[bytes, Callable[[_ObjectMachine], None]] = {
    b"B": lambda machine: machine.bytes(machine.unpack(_U32)),
    b"C": lambda machine: machine.bytes(machine.unpack(_U8)),
    b"\x8e": lambda machine: machine.bytes(machine.unpack(_U64)),
    b"\x8f": _ObjectMachine.empty_set,
    b"\x90": _ObjectMachine.append_marked,
    b"\x91": _ObjectMachine.frozen_set_of_marked,
}
_OPERATIONS = [_KNOWN.get(bytes([code]), _Machine.refuse) for code in range(256)]
_OBJECT_OPERATIONS = [*_OPERATIONS]
for _code, _operation in _OBJECTS.items():
    _OBJECT_OPERATIONS[_code[0]] = cast(_Operation, _operation)
