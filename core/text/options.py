"""Options in messages: marked where a message is made, spelled where it is shown.

The same message may be read by someone who typed a command, wrote a program, filled in a form, or called one of
MindSpore's functions. So a message holds a mark for each option, `option("overwrite", True)`, which names the keyword
argument of `reshard`'s functions and says its value as JSON. Marks are plain text: they stay in an error that is
pickled, or joined with others into one message. `str()` of an error spells them. Text that is not an error's, such as a
note, is `spelled` where it is made.

Whoever shows messages says how with `spelled_by`; without it options are keyword arguments.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

Value = bool | int | str | list[str] | None
"""True for an option that is switched on; None where only its name matters."""


class Option(Struct, frozen=True):
    """An option that a message names, and the value that would help, if it says one."""

    name: str
    value: Value = None

    @property
    def texts(self) -> list[str]:
        """Its values as texts; none for one that has only a name or is switched on."""
        if self.value is None or self.value is True:
            return []
        return [str(each) for each in self.value] if isinstance(self.value, list) else [str(self.value)]


Spelling = Callable[[Option], str]

_MARK = re.compile(r"⟦([a-z][a-z0-9_]*)(?:=([^⟦⟧]*))?⟧")


def option(name: str, value: bool | int | str | Sequence[str] | None = None) -> str:
    """Return the mark of an option in a message; `name` is the keyword argument of `reshard`'s functions."""
    if value is None:
        return f"⟦{name}⟧"
    plain = value if isinstance(value, str | int) else list(value)
    return f"⟦{name}={json.dumps(plain)}⟧"


def options_in(message: str) -> tuple[Option, ...]:
    """Return the options that a message names, in order."""
    found = (_parsed(mark) for mark in _MARK.finditer(message))
    return tuple(each for each in found if each is not None)


def spelled(message: str) -> str:
    """Spell the options in a message as its reader knows them."""
    if "⟦" not in message:
        return message
    spelling = _spelling.get()

    def spell(mark: re.Match[str]) -> str:
        found = _parsed(mark)
        return mark[0] if found is None else spelling(found)

    return _MARK.sub(spell, message)


def keyword(option: Option) -> str:
    """Spell an option as a keyword argument: `overwrite=True`, `exclude=['w']`, or its name in quotes."""
    return f"'{option.name}'" if option.value is None else f"{option.name}={option.value!r}"


@contextmanager
def spelled_by(spelling: Spelling) -> Iterator[None]:
    """Spell options this way inside the block."""
    token = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(token)


@contextmanager
def options_of_side(side: str) -> Iterator[None]:
    """Name the source's options that belong to one side of a comparison, `a` or `b`, inside the block."""
    token = _side.set(side)
    try:
        yield
    finally:
        _side.reset(token)


def source_option(name: str, value: bool | int | str | Sequence[str] | None = None) -> str:
    """Return the mark of a source's option; a comparison has each of them twice, `step_a` and `step_b`."""
    side = _side.get()
    return option(f"{name.removeprefix('source_')}_{side}" if side else name, value)


def _parsed(mark: re.Match[str]) -> Option | None:
    """The option of a mark; None for a foreign name that only looks like one."""
    if mark[2] is None:
        return Option(mark[1])
    try:
        value = json.loads(mark[2])
    except (ValueError, RecursionError):
        return None
    items = value if isinstance(value, list) else [value]
    return Option(mark[1], value) if all(isinstance(each, bool | int | str) for each in items) else None


_spelling: ContextVar[Spelling] = ContextVar("reshard_spelling", default=keyword)
_side: ContextVar[str] = ContextVar("reshard_side", default="")
