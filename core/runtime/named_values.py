"""Values kept under names: requests, records and logs hold the name, and the code that uses the value looks it up.

env:NAME    a variable of the environment
file:PATH   a regular file; a pipe could be read only once
block:NAME  a value that the caller's resolver knows
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from reshard.core.errors import InputError
from reshard.core.runtime.local_files import open_regular

_MAX_FILE_BYTES = 2**20

Resolver = Callable[[str], Any]
"""Returns the value of a name without its kind: text, or a mapping.

Raises an InputError, whose message need not repeat the name, if there is none.
"""


def value_of(name: str, resolvers: Mapping[str, Resolver], advice: str) -> Any:
    """Look up the value of a name. No error contains the value, nor is caused by an error that does.

    `advice` is the error message for a text that is not a name.

    Raises:
        InputError: the text is not a name, or nothing is kept under it.
    """
    if not is_name(name):
        raise InputError(advice)
    return _resolve(name, {**resolvers, **_RESOLVERS})


def bytes_of(name: str, resolvers: Mapping[str, Resolver], advice: str) -> bytes:
    """Look up the value of a name as bytes: a file's may be any, others are text. Raises as `value_of`."""
    if not is_name(name):
        raise InputError(advice)
    value = _resolve(name, {**resolvers, **_RESOLVERS, "file": _file_content})
    if type(value) is int:  # Prefect takes digits for a number
        value = str(value)
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")  # an environment may have any bytes
    if not isinstance(value, bytes):
        raise InputError(f"{name}: is not text")
    return value


def _resolve(name: str, resolvers: Mapping[str, Resolver]) -> Any:
    kind, _, rest = name.partition(":")
    resolver = resolvers.get(kind)
    if resolver is None:
        raise InputError(f"{name}: blocks are Prefect's, and known only to what runs with Prefect; name env: or file:")
    try:
        return resolver(rest)
    except InputError as error:
        raise InputError(f"{name}: {error.marked}") from error


def _of_environment(name: str) -> str:
    if name not in os.environ:
        raise InputError("there is no such variable in the environment")
    return os.environ[name]


def _of_file(path: str) -> str:
    try:
        return _file_content(path).decode()
    except UnicodeDecodeError:
        raise InputError("is not text, in UTF-8") from None


def _file_content(path: str) -> bytes:
    try:
        with open(open_regular(os.path.expanduser(path)), "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from error
    except ValueError:  # a NUL in the path
        raise InputError("cannot be read: not the path of a file") from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError(f"cannot be read: has more than {_MAX_FILE_BYTES} bytes")
    return content


_RESOLVERS: Mapping[str, Resolver] = {"env": _of_environment, "file": _of_file}


NAME_PATTERN = r"(env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*|block:[a-z0-9-]+)"
"""Names of values. What cannot be the name of a variable or a block may be the value itself: it is never repeated."""

_NAME = re.compile(NAME_PATTERN)

_SPELLING = "NAME has letters, digits and _ (a block's: lowercase letters, digits and -)"

NAME_ADVICE = (
    "must be env:NAME, file:PATH or block:NAME, which says where storage options are kept; never the options "
    f"themselves. {_SPELLING}"
)

KEY_ADVICE = (
    f"must be env:NAME, file:PATH or block:NAME, which says where the key is kept; never the key itself. {_SPELLING}"
)


def is_name(text: str) -> bool:
    """True if a text is the name of a value."""
    return _NAME.fullmatch(text) is not None
