"""Entries to append to checkpoint files, as text: NAME=VALUE."""

import re
from collections.abc import Iterable

InfoValue = bool | int | float | str

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TEXT_MARK = "text:"
_BOOLS = {"true": True, "false": False}
_TOO_LARGE = float.fromhex("0x1.ffffffp+127")
"""The smallest value that Float32 rounds to infinity."""


def parse_info(texts: Iterable[str]) -> tuple[tuple[str, InfoValue], ...]:
    """Parse names and values of texts such as `epoch_num=5`.

    A value is true or false (in upper or lower case), an integer, a decimal number, or else text; after `text:` it is
    always text.
    """
    found: dict[str, InfoValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"must be NAME=VALUE, such as epoch_num=5, not {text!r}")
        if name in found:
            raise ValueError(f"gives {name!r} twice")
        found[name] = check_info(name, _parsed(value))
    return tuple(found.items())


def format_info(name: str, value: InfoValue) -> str:
    """Format a name and a value for `parse_info`."""
    return f"{name}={format_value(value)}"


def format_value(value: InfoValue) -> str:
    """Format a value for `parse_info`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return value if _parsed(value) == value else f"{_TEXT_MARK}{value}"


def check_info(name: str, value: InfoValue) -> InfoValue:
    """Return a value that a checkpoint file can hold as MindSpore does: as Int64, UInt64, Float32 or UTF-8 text."""
    texts = [name, value] if isinstance(value, str) else [name]
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise ValueError(f"{name!r}: its name or its text is not UTF-8")
    if isinstance(value, str) and value.endswith("\0"):
        raise ValueError(f"{name!r}: its text ends in a zero byte, which readers of the file would not see")
    if isinstance(value, float) and not abs(value) < _TOO_LARGE:
        raise ValueError(f"{name!r}: {value} is not a finite Float32, as which MindSpore saves such a number")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{name!r}: {value} fits neither Int64 nor UInt64, as which MindSpore saves integers")
    return value


def _parsed(value: str) -> InfoValue:
    if value.startswith(_TEXT_MARK):
        return value.removeprefix(_TEXT_MARK)
    if value.lower() in _BOOLS:
        return _BOOLS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _DECIMAL.fullmatch(value) else value
