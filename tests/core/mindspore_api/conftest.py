"""Checks that no error or warning of the API names an option of the command."""

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from reshard import mindspore

_OPTION = re.compile(r"(^|[\s('])--[a-z]")


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            assert not _OPTION.search(str(error)), f"{function.__name__} names an option of the command: {error}"
            raise

    return call


@pytest.fixture(autouse=True)
def _messages_without_options(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: dict[Any, Callable[..., Any]] = {}
    for name in mindspore.__all__:
        function = getattr(mindspore, name)
        if callable(function) and not isinstance(function, type):
            monkeypatch.setattr(mindspore, name, wrapped.setdefault(function, _checked(function)))
    warn = warnings.warn

    def checked_warn(message: Any, category: Any = None, stacklevel: int = 1, **keywords: Any) -> None:
        assert not _OPTION.search(str(message)), f"a warning names an option of the command: {message}"
        # the wrapper of the function and this one are two levels that callers do not have
        warn(message, category, stacklevel + (2 if stacklevel > 1 else 1), **keywords)

    monkeypatch.setattr(warnings, "warn", checked_warn)
