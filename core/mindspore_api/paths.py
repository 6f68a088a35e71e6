"""Paths and strategy files among the arguments, and the exceptions with which MindSpore refuses them."""

import os

from reshard.core.errors import StrategyError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.mindspore_api.arguments import check_type
from reshard.core.mindspore_api.failures import reading
from reshard.core.storage.listing import kind_of
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy

_MAX_PATH_LENGTH = 1024


def checked_directory(name: str, path: str) -> str:
    """Return the absolute path of a directory for new files, which need not exist."""
    check_type(name, path, str)
    if not path.strip():
        raise ValueError(f"{name!r} is blank")
    found = os.path.realpath(path)
    if len(found) > _MAX_PATH_LENGTH:
        raise ValueError(f"{name!r} has {len(found)} characters, more than {_MAX_PATH_LENGTH}: {found}")
    if os.path.exists(found) and not os.path.isdir(found):
        raise NotADirectoryError(f"{name!r} is not a directory: {found}")
    return found


def make_directory(path: str) -> None:
    """Make a local directory for its owner alone, as MindSpore does; those above it, if need be, as usual."""
    os.makedirs(path, mode=0o700, exist_ok=True)


def optional_strategy(name: str, path: str | None) -> Strategy | None:
    """Read the strategy in a file, None without a path; raises as `required_strategy` does."""
    check_type(name, path, str, optional=True)
    return None if path is None else required_strategy(name, path)


def required_strategy(name: str, path: str) -> Strategy:
    """Read the strategy in a file."""
    check_type(name, path, str)
    with reading():
        if kind_of(parse_url(path)) != "file":
            raise StrategyError(f"{name!r}: there is no such file: {path}")
        return read_any_strategy(path)
