from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.strategy.files import read_strategy
from tests.support.checkpoints import case

DIRECTORY = case(7010).directory


@pytest.mark.parametrize("name", ["merged.ckpt", "merged.json"])
def test_merged_like_mindspore(reshard: Callable[..., Any], tmp_path: Path, name: str) -> None:
    shown = reshard("merge-strategy", DIRECTORY / "src_stages", tmp_path / name)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == f"{tmp_path / name}: 2 stages of 4 devices, 6 parameters\n"
    merged, want = read_strategy(str(tmp_path / name)), read_strategy(str(DIRECTORY / "src_strategy.ckpt"))
    assert [stage.layouts for stage in merged.stages] == [stage.layouts for stage in want.stages]


def test_json(reshard: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "merged.ckpt"
    shown = reshard("merge-strategy", DIRECTORY / "src_stages", out, "--json")
    assert shown.json == {"url": str(out), "stages": 2, "devices_per_stage": 4, "parameters": 6}


def test_what_is_there_is_kept(reshard: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "merged.ckpt"
    out.write_text("precious")
    shown = reshard("merge-strategy", DIRECTORY / "src_stages", out)
    assert (shown.code, shown.out) == (2, "")
    assert f"{out}: already exists" in shown.err
    assert out.read_text() == "precious"
    assert reshard("merge-strategy", DIRECTORY / "src_stages", out, "--overwrite").code == 0
    assert len(read_strategy(str(out)).stages) == 2


def test_a_failure_keeps_what_is_there(reshard: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "merged.ckpt"
    out.write_text("precious")
    assert reshard("merge-strategy", tmp_path / "nothing", out, "--overwrite").code == 2
    assert out.read_text() == "precious"


def test_a_directory_is_not_replaced(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("merge-strategy", DIRECTORY / "src_stages", tmp_path, "--overwrite")
    assert shown.code == 2
    assert "is a directory" in shown.err


def test_not_among_the_files_to_be_merged(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "strategy.ckpt").write_bytes((DIRECTORY / "src_stages/strategy_0.ckpt").read_bytes())
    shown = reshard("merge-strategy", tmp_path, tmp_path / "merged.ckpt")
    assert shown.code == 2
    assert "lies inside" in shown.err


def test_a_missing_stage_is_named(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/strategy_4.ckpt").write_bytes((DIRECTORY / "src_stages/strategy_4.ckpt").read_bytes())
    shown = reshard("merge-strategy", tmp_path / "in", tmp_path / "merged.ckpt")
    assert shown.code == 2
    assert "stage 0 is missing" in shown.err
