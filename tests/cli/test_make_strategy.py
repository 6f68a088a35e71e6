"""`reshard make-strategy`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout

ROWS = ParameterLayout((2, 2), ((0,), ()), tensor_shape=(12, 8))
WHOLE = ParameterLayout((2, 2), ((),), tensor_shape=(8,))


@pytest.fixture
def like(tmp_path: Path) -> Path:
    """Two stages of a layer each, as JSON."""
    stages = (
        StageStrategy(0, {"embed.w": ROWS, "l.0.w": ROWS, "l.1.w": ROWS}),
        StageStrategy(1, {"l.2.w": ROWS, "norm.w": WHOLE}),
    )
    path = tmp_path / "like.json"
    write_strategy(Strategy(stages, "test"), str(path))
    return path


def test_what_was_made(reshard: Callable[..., Any], like: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.ckpt"
    shown = reshard("make-strategy", out, "--like", like, "-D", 2, "-M", 4, "--optimizer-parallel")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[:3] == [
        f"strategy   {out}: 8 ranks, 5 parameters",
        "parallel   data 2 x model 4 x 1 stage",
        "made from  data 2 x model 2 x 2 stages",
    ]
    assert "stage  ranks  layers  parameters\n    0  0-7    0-2              5\n" in shown.out
    assert "axis 0 into 4           4\n" in shown.out
    assert len(read_strategy(str(out)).ranks) == 8


def test_json(reshard: Callable[..., Any], like: Path, tmp_path: Path) -> None:
    options = ("--optimizer-parallel", "--optimizer-threshold", 0, "-P", 3, "--json")
    shown = reshard("make-strategy", tmp_path / "made.json", "--like", like, "-D", 3, "-M", 2, *options)
    assert [stage["layers"] for stage in shown.json["stages"]] == ["0", "1", "2"]
    assert shown.json["cuts"] == [
        {"axes": [], "parameters": 1, "optimizer_shards": 0},
        {"axes": [[0, 2]], "parameters": 4, "optimizer_shards": 4},
    ]
    assert shown.json["unchecked"] == 0
    assert "optimizer parallel leaves 1 parameter as they are" in shown.json["notes"][0]


def test_what_does_not_divide(reshard: Callable[..., Any], like: Path, tmp_path: Path) -> None:
    shown = reshard("make-strategy", tmp_path / "made.ckpt", "--like", like, "-D", 1, "-M", 8)
    assert shown.code == 2
    assert "axis 0 has 12 elements, which 8 devices cannot share evenly: 'embed.w', 'l.0.w'" in shown.err
    assert not (tmp_path / "made.ckpt").exists()


def test_nothing_is_overwritten_unasked(reshard: Callable[..., Any], like: Path) -> None:
    before = like.read_bytes()
    shown = reshard("make-strategy", like, "--like", like, "-D", 1, "-M", 1)
    assert (shown.code, like.read_bytes()) == (2, before)


def test_sizes_are_checked(reshard: Callable[..., Any], like: Path, tmp_path: Path) -> None:
    shown = reshard("make-strategy", tmp_path / "made.ckpt", "--like", like, "-D", 0, "-M", 1)
    assert shown.code == 2
    assert "0 is not in the range x>=1" in shown.err
