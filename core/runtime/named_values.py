"""What is kept under a name: requests, records and logs hold the name, and who uses the value looks it up.

env:NAME    a variable of the environment
file:PATH   a regular file; a pipe could be read only once
block:NAME  what the caller's resolver knows
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from reshard.core.errors import InputError
from reshard.core.runtime.local_files import open_regular

_LARGEST_FILE_BYTES = 2**20

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
        with open(open_regular(os.path.expanduser(path)), "rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        if len(content) <= _LARGEST_FILE_BYTES:
            return content.decode()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from error
    except ValueError:
        raise InputError("is not text, in UTF-8") from None
    raise InputError(f"cannot be read: has more than {_LARGEST_FILE_BYTES} bytes")


_RESOLVERS: Mapping[str, Resolver] = {"env": _of_environment, "file": _of_file}


_NAME = re.compile(r"(env|file|block):\S.*")

NAME_ADVICE = (
    "must be env:NAME, file:PATH or block:NAME, which says where storage options are kept; never the options themselves"
)

KEY_ADVICE = "must be env:NAME, file:PATH or block:NAME, which says where the key is kept; never the key itself"


def is_name(text: str) -> bool:
    """Whether a text is the name of storage options, or of a key, that are kept elsewhere."""
    return _NAME.fullmatch(text) is not None
