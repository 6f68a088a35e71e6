"""What is kept under a name: requests, records and logs hold the name, and who uses the value looks it up.

env:NAME    a variable of the environment
file:PATH   a file
block:NAME  what the caller's resolver knows
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from core.errors import InputError
from core.secrets import is_name

Resolver = Callable[[str], Any]
"""Gives the value of a name, without its kind in front: text, or a mapping.

It raises an InputError, whose message need not repeat the name, if there is none.
"""


def value_of(name: str, resolvers: Mapping[str, Resolver], advice: str) -> Any:
    """What is kept under a name; no error repeats it, nor is one caused by an error that does.

    `advice` says what a name has to be.

    Raises:
        InputError: it is no name, or nothing is kept under it.
    """
    if not is_name(name):
        raise InputError(advice)
    kind, _, rest = name.partition(":")
    resolver = {**resolvers, **_RESOLVERS}.get(kind)
    if resolver is None:
        raise InputError(f"{name}: blocks are Prefect's, and known only to what runs with Prefect; name env: or file:")
    try:
        return resolver(rest)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _of_environment(name: str) -> str:
    if name not in os.environ:
        raise InputError("there is no such variable in the environment")
    return os.environ[name]


def _of_file(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from error
    except ValueError:
        raise InputError("is not text, in UTF-8") from None


_RESOLVERS: Mapping[str, Resolver] = {"env": _of_environment, "file": _of_file}
