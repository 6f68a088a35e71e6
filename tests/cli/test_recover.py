"""`reshard recover`, and what `convert` and `plan` print of lost ranks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.damaged import file_of, whole_shards


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return whole_shards(tmp_path)


def arguments(directory: Path) -> tuple[str, ...]:
    return "recover", str(directory / "src"), "--source-strategy", str(directory / "strategy.ckpt")


def test_whole(reshard: Callable[..., Any], directory: Path) -> None:
    shown = reshard(*arguments(directory))
    assert shown.code == 0
    assert "answer  WHOLE: every rank has its file\n" in shown.out


def test_recoverable(reshard: Callable[..., Any], directory: Path) -> None:
    file_of(directory, 2).write_bytes(b"")
    shown = reshard(*arguments(directory), "--fault-ranks", "3")
    assert shown.code == 0
    assert "ranks   6, 2 of them lost\nanswer  RECOVERABLE: other ranks hold all that the lost ones held" in shown.out
    assert "        3  named as faulty\n" in shown.out
    assert "lost rank  substitute  slices\n        2           0       3\n        3           1       3\n" in shown.out


def test_not_recoverable(reshard: Callable[..., Any], directory: Path) -> None:
    shutil.copyfile(file_of(directory, 0), file_of(directory, 0, "0_5"))
    shown = reshard(*arguments(directory), "--fault-ranks", "1,3,5")
    assert shown.code == 1
    assert "answer  NOT RECOVERABLE: 3 parts no longer on any rank\n" in shown.out
    assert "lost parameter  box    should be on\na               [2:4]  1,3,5\n" in shown.out
    assert "other step  state  details\n0_5         lost   no longer on any rank: 3 parts of what " in shown.out


def test_json(reshard: Callable[..., Any], directory: Path) -> None:
    shown = reshard(*arguments(directory), "--fault-ranks", "1,3,5", "--json")
    report = json.loads(shown.out)
    assert (shown.code, report["state"], report["step"]) == (1, "lost", "1_1")
    assert report["lost"][0] == {"parameter": "a", "box": "[2:4]", "ranks": [1, 3, 5]}
    assert report["lost_ranks"][0] == {"rank": 1, "why": "named as faulty"}


def test_groups(reshard: Callable[..., Any], directory: Path) -> None:
    groups = directory / "groups.json"
    groups.write_text("[[0, 2, 4], [1, 3, 5]]")
    shown = reshard("recover", directory / "src", "--group-info", groups, "--fault-ranks", "1,3,5")
    assert shown.code == 1
    assert "all that these ranks held  all of it  1,3,5\n" in shown.out
    assert reshard("recover", directory / "src").code == 2


def test_a_conversion_says_loudly_what_stood_in(reshard: Callable[..., Any], directory: Path) -> None:
    convert = ("convert", str(directory / "src"), str(directory / "out"), *arguments(directory)[2:])
    direct = (*convert, "--engine", "direct")
    file_of(directory, 2).unlink()
    refused = reshard(*direct)
    assert refused.code == 2
    assert "--recover would succeed: what rank_2 should hold is on other ranks as well\n" in refused.err
    message = "rank_2 had no usable file: 3 slices taken from rank_0 instead"
    planned = reshard(*direct, "--recover", "--dry-run")
    assert f"RECOVERED   {message}\n" in planned.out
    shown = reshard(*direct, "--recover")
    assert shown.code == 0
    assert f"RECOVERED  {message}\n" in shown.out
    assert "note       RECOVERED: rank_2 (it has no checkpoint file): 3 slices taken from rank_0\n" in shown.out


def test_quiet_and_the_log_do_not_conceal_what_stood_in(
    reshard: Callable[..., Any], directory: Path, tmp_path: Path
) -> None:
    convert = ("convert", directory / "src", tmp_path / "out", *arguments(directory)[2:], "--engine", "direct")
    shown = reshard(*convert, "--recover", "--fault-ranks", "2", "-q", "--log-file", tmp_path / "log")
    message = "RECOVERED: rank_2 had no usable file: 3 slices taken from rank_0 instead"
    assert (shown.code, shown.out, shown.err) == (0, "", f"reshard: {message}\n")
    assert f" WARNING {message}\n" in (tmp_path / "log").read_text()


def test_faulty_ranks_need_recover(reshard: Callable[..., Any], directory: Path) -> None:
    shown = reshard("convert", directory / "src", directory / "out", "--fault-ranks", "2")
    assert shown.code == 2
    assert "--fault-ranks '2': only valid with --recover" in shown.err
