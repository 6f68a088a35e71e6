"""Checks of storage options; no error contains their values, which may be secrets."""

from collections.abc import Iterable, Mapping
from typing import Any


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
