"""Options in messages: marked where a message is made, spelled where it is shown.

The same message may be read by someone who typed a command, wrote a program, filled in a form, or called one of
MindSpore's functions. So a message holds a mark for each option, `option("overwrite", True)`, which names the keyword
argument of `reshard`'s functions and says its value as JSON. Marks are plain text: they stay in an error that is joined
with others into one message. `str()` of an error spells them. Text that is not an error's, such as a note, is `spelled`
where it is made.

Each process marks options with a random key of its own, so that no name in a file can pass for a mark. An error that is
pickled takes along the key that its message was made with.

The code that shows messages chooses the spelling with `spelled_by`; the default is keyword arguments. A message that
asks for an option says `pass` in front of its mark; for a form, where nothing is passed, `spelled_by` has another verb.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
        """Its values as texts; none for one that has only a name or is switched on, `off` for False."""
        if self.value is None or self.value is True:
            return []
        if self.value is False:
            return ["off"]
        return [str(each) for each in self.value] if isinstance(self.value, list) else [str(self.value)]


Spelling = Callable[[Option], str]

KEY = os.urandom(8).hex()
"""What marks of this process begin with."""
_MARK = re.compile(rf"⟦{KEY}:([a-z][a-z0-9_]*)(?:=([^⟦⟧]*))?⟧")
_VERB = "pass"
_ASKED = re.compile(rf"\b{_VERB}(?= ⟦{KEY}:)")


def option(name: str, value: bool | int | str | Sequence[str] | None = None) -> str:
    """Return the mark of an option in a message; `name` is the keyword argument of `reshard`'s functions."""
    if value is None:
        return f"⟦{KEY}:{name}⟧"
    plain = value if isinstance(value, str | int) else list(value)
    return f"⟦{KEY}:{name}={json.dumps(plain)}⟧"


def received(message: str, key: str) -> str:
    """Return a message of the process with this key, with the marks of this one."""
    return message.replace(f"⟦{key}:", f"⟦{KEY}:")


def options_in(message: str) -> tuple[Option, ...]:
    """Return the options that a message names, in order."""
    return tuple(map(_parsed, _MARK.finditer(message)))


def spelled(message: str) -> str:
    """Spell the options in a message as its reader knows them."""
    spelling = _spelling.get()
    return _MARK.sub(lambda mark: spelling(_parsed(mark)), _ASKED.sub(_verb.get(), message))


def keyword(option: Option) -> str:
    """Spell an option as a keyword argument: `overwrite=True`, `exclude=['w']`, or its name in quotes."""
    return f"'{option.name}'" if option.value is None else f"{option.name}={option.value!r}"


@contextmanager
def spelled_by(spelling: Spelling, verb: str = _VERB) -> Iterator[None]:
    """Spell options this way inside the block, and ask for them with this verb."""
    token, verb_token = _spelling.set(spelling), _verb.set(verb)
    try:
        yield
    finally:
        _verb.reset(verb_token)
        _spelling.reset(token)


@contextmanager
def source_options_as(renamed: Callable[[str], str]) -> Iterator[None]:
    """Give the source's options other names inside the block, where there is more than a source, or no target."""
    token = _renamed.set(renamed)
    try:
        yield
    finally:
        _renamed.reset(token)


def options_of_side(side: str) -> AbstractContextManager[None]:
    """Name the source's options that belong to one side of a comparison, `a` or `b`, inside the block."""
    return source_options_as(lambda name: f"{name.removeprefix('source_')}_{side}")


def source_option(name: str, value: bool | int | str | Sequence[str] | None = None) -> str:
    """Return the mark of a source's option; a comparison has each of them twice, `step_a` and `step_b`."""
    return option(_renamed.get()(name), value)


def _parsed(mark: re.Match[str]) -> Option:
    return Option(mark[1]) if mark[2] is None else Option(mark[1], json.loads(mark[2]))


_spelling: ContextVar[Spelling] = ContextVar("reshard_spelling", default=keyword)
_renamed: ContextVar[Callable[[str], str]] = ContextVar("reshard_renamed", default=str)
_verb: ContextVar[str] = ContextVar("reshard_verb", default=_VERB)
