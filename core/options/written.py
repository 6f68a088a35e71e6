"""What a person writes for an option in a program or a job file, brought into the form that requests hold.

Requests hold what a command line and a form can give: texts, and lists of texts. Programs have paths, numbers, ranges
and mappings for the same. What means nothing here stays as it is, for pydantic to refuse.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from reshard.core.runtime.records import Record

Split = Callable[[str, str], tuple[str, str, str]]


class Bare(str):
    """A text without quotes in YAML: it means what it would mean on the command line, perhaps a number."""


class Written(Record):
    """Turns a value of a program into that of a request; in the annotation of a field's type.

    Attributes:
        convert: makes the value of a request; raises ValueError.
        hint: the type of what it takes, in names of `reshard.options`.
    """

    convert: Callable[[Any], Any]
    hint: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self.convert, handler(source))


def plain(value: Any) -> Any:
    """Return Python's own number for one of numpy; other values as they are."""
    is_number = getattr(value, "ndim", None) == 0 and hasattr(value, "item")  # numpy's dtypes have no axes either
    return value.item() if is_number else value


def is_whole(value: object) -> bool:
    """True for integers, which True and False are not meant to be."""
    return isinstance(value, int) and not isinstance(value, bool)


def number_as_text(value: Any) -> Any:
    """Return an integer as text."""
    value = plain(value)
    return str(value) if is_whole(value) else value


def text_by(convert: Callable[[Any], Any], advice: str, hint: str) -> Written:
    """Let `convert` make a text of a value; `advice` says what it must be if none comes of it."""

    def written(value: object) -> object:
        text = convert(value)
        if not isinstance(text, str):
            raise ValueError(advice)
        return text

    return Written(written, hint)


def _path_as_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _one_as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


PATH = text_by(_path_as_text, "must be a path or URL", "PathOrUrl")
TEXTS = Written(_one_as_list, "Texts")


def pairs_by(text_of: Callable[[str, Any], str], split: Split, hint: str) -> Written:
    """Make texts NAME=VALUE of a mapping, and a list of one text.

    Args:
        text_of: formats a value; gets its name, too, for messages.
        split: how such a text is parsed again: at the first `=`, or at the last.
        hint: as of `Written`.
    """

    def written(value: object) -> object:
        if not isinstance(value, Mapping):
            return _one_as_list(value)
        return [_pair(name, text_of(name, plain(each)), split) for name, each in value.items()]

    return Written(written, hint)


def _pair(name: object, value: str, split: Split) -> str:
    text = f"{name}={value}"
    if split(text, "=")[::2] != (name, value):
        raise ValueError(f"{name!r} and {value!r} cannot be told apart in {text!r}")
    return text


def text_itself(name: str, value: Any) -> str:
    """Format a value that must be text."""
    if not isinstance(value, str):
        raise ValueError(f"the value of {name!r} must be a text, not {value!r}")
    return value


def text_of_setting(name: str, value: Any) -> str:
    """Format a text, a number, or true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ValueError(f"the value of {name!r} must be a text, a number, true or false, not {value!r}")
    return str(value)
