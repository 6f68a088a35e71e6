"""Paths and strategy files that are given to functions, and by which exceptions MindSpore refuses them."""

import os

from reshard.core.errors import StrategyError
from reshard.core.mindspore_api.failures import reading
from reshard.core.storage.listing import kind_of
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy
from reshard.core.strategy.model import Strategy

_LONGEST_PATH = 1024


def checked_directory(name: str, path: object) -> str:
    """The absolute path of a directory that files are to be written into; it need not exist.

    Raises:
        TypeError: it is no string.
        ValueError: it is blank or too long.
        NotADirectoryError: it is a file.
    """
    if not isinstance(path, str):
        raise TypeError(f"{name!r} has to be a string, not {path!r}")
    if not path.strip():
        raise ValueError(f"{name!r} is blank")
    found = os.path.realpath(path)
    if len(found) > _LONGEST_PATH:
        raise ValueError(f"{name!r} has {len(found)} characters, more than {_LONGEST_PATH}: {found}")
    if os.path.exists(found) and not os.path.isdir(found):
        raise NotADirectoryError(f"{name!r} is not a directory: {found}")
    return found


def given_strategy(name: str, path: object) -> Strategy | None:
    """The strategy in a file; None for None.

    Raises:
        TypeError: it is no string.
        ValueError: there is no such file, it is empty, or cannot be used.
    """
    if path is None:
        return None
    if not isinstance(path, str):
        raise TypeError(f"{name!r} has to be a string or None, not {path!r}")
    with reading():
        if kind_of(parse_url(path)) != "file":
            raise StrategyError(f"{name!r}: there is no such file: {path}")
        return read_strategy(path)
