"""Small checkpoints; and the check that no error or warning of the API names an option of the command."""

import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard import mindspore
from tests.support.strategy_writer import write_strategy_file
from tests.support.transformed import COLUMNS, REPEATED_ROWS, ROWS, VALUES, tensor, write_rank

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


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """`src/`, `w` on two ranks by rows, and the strategies `rows.ckpt` and `columns.ckpt`."""
    for rank in range(2):
        write_rank(tmp_path / "src", rank, {"w": tensor(VALUES[2 * rank : 2 * rank + 2])})
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"w": ROWS}})
    write_strategy_file(tmp_path / "columns.ckpt", {0: {"w": COLUMNS}})
    return tmp_path


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    """`src/`, `a` on the two ranks of stage 0, `b` on those of stage 1; `own_0/0.ckpt` and `own_1/1.ckpt`."""
    for stage, name in enumerate("ab"):
        for rank in range(2):
            write_rank(tmp_path / "src", 2 * stage + rank, {name: tensor(VALUES[2 * rank : 2 * rank + 2])})
        (tmp_path / f"own_{stage}").mkdir()
        write_strategy_file(tmp_path / f"own_{stage}" / f"{stage}.ckpt", {stage: {name: ROWS}})
    write_strategy_file(tmp_path / "both.ckpt", {0: {"a": COLUMNS, "b": COLUMNS}})
    write_strategy_file(tmp_path / "two.ckpt", {0: {"0-a": COLUMNS}, 1: {"1-b": COLUMNS}})
    return tmp_path


@pytest.fixture
def repeated(tmp_path: Path) -> tuple[dict[int, str], str]:
    """Four ranks that hold `w` twice, by rows, and their strategy."""
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"w": REPEATED_ROWS}})
    halves = [VALUES[:2], VALUES[2:]] * 2
    files = {rank: write_rank(tmp_path / "src", rank, {"w": tensor(half)}) for rank, half in enumerate(halves)}
    return files, str(tmp_path / "rows.ckpt")
