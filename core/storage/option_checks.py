"""Checks of storage options; no error contains their values, which may be secrets."""

from collections.abc import Iterable, Mapping
from typing import Any

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
"""As texts: variables such as FSSPEC_S3_ANON have no other values."""


def check_known(given: Iterable[str], known: Iterable[str], where: str = "") -> None:
    """Check that options are known.

    Raises:
        ValueError: one is not.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        of = f" of {where}" if where else ""
        raise ValueError(f"{', '.join(unknown)}: no such storage option{of}; there are {', '.join(known)}")


def check_kinds(values: Mapping[str, Any], kind: type | tuple[type, ...], words: str) -> None:
    """Check that values, if given, are of a kind that `words` describe.

    Raises:
        ValueError: one is not.
    """
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name}: must be {words}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check that a value is one of some texts.

    Raises:
        ValueError: it is not.
    """
    *others, last = choices
    if value not in (*others, last):
        raise ValueError(f"{name}: must be {', '.join(others)} or {last}")


def flag(name: str, value: object) -> bool:
    """Return what an option that is on or off says; None is off.

    Raises:
        ValueError: it is neither.
    """
    found = _FLAGS.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(found, bool | None):
        raise ValueError(f"{name}: must be true or false")
    return bool(found)


def seconds(name: str, value: object, default: float) -> float:
    """Return a number of seconds.

    Raises:
        ValueError: it is not a positive number.
    """
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}: must be a number of seconds")
    return float(value)
