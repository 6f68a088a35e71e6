"""Commands suggest the path that was meant by one that does not exist."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import case

CASE = case(7010)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("convert", "scr", "new"), "src"),
        (("convert", "scr/rank_{rank}/net.ckpt", "new"), "src"),
        (("convert", "src", "new", "--source-strategy", "stratgy.ckpt"), "strategy.ckpt"),
        (("convert", "src", "new", "--source-strategy", "strategy.ckpt", "--changes", "change.yaml"), "changes.yaml"),
        (("convert", "--config", "chnges.yaml"), "changes.yaml"),
        (
            ("convert", "src", "new", "--layout", "unified", "--source-strategy", "strategy.ckpt", "--like", "modle"),
            "model",
        ),
        (("verify", "otu"), "out"),
        (("clean", "otu"), "out"),
        (("inspect", "scr"), "src"),
        (("diff", "scr", "out"), "src"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_commands_suggest_paths(
    reshard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").symlink_to(CASE.directory / "src")
    (tmp_path / "strategy.ckpt").symlink_to(CASE.directory / "src_strategy.ckpt")
    (tmp_path / "changes.yaml").write_text("select: all\n")
    for name in ("model", "out"):
        (tmp_path / name).mkdir()
    shown = reshard(*arguments)
    assert shown.code == 2
    assert f"; did you mean {tmp_path}/{meant}?" in shown.err
