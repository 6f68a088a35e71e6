"""Paths and strategy files among the arguments."""

from pathlib import Path
from typing import Any

import pytest

from reshard.core.mindspore_api.paths import checked_directory, optional_strategy, required_strategy


def test_a_directory_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_directory("dst_dir", "out/new") == str(tmp_path / "out/new")


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        (5, TypeError, "'dst_dir' has to be a string, not 5"),
        (" ", ValueError, "'dst_dir' is blank"),
        ("a" * 1100, ValueError, "'dst_dir' has .* characters, more than 1024"),
        ("file", NotADirectoryError, "'dst_dir' is not a directory"),
    ],
)
def test_refused_directories(
    path: Any, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(error, match=message):
        checked_directory("dst_dir", path)


def test_strategies(rows: Path) -> None:
    assert optional_strategy("src_strategy_file", None) is None
    assert required_strategy("src_strategy_file", str(rows / "rows.ckpt")).parameters == {"w"}
    given = optional_strategy("src_strategy_file", str(rows / "rows.ckpt"))
    assert given is not None
    assert given.parameters == {"w"}


def test_refused_strategies(rows: Path) -> None:
    wrong: Any
    for wrong, kind, message in (
        (5, TypeError, "has to be a string"),
        (str(rows / "no"), ValueError, "'src_strategy_file': there is no such file"),
        (str(rows), ValueError, "'src_strategy_file': there is no such file"),
    ):
        for read in (optional_strategy, required_strategy):
            with pytest.raises(kind, match=message):
                read("src_strategy_file", wrong)
    with pytest.raises(TypeError, match="'src_strategy_file' has to be a string, not None"):
        required_strategy("src_strategy_file", None)  # type: ignore[arg-type]
