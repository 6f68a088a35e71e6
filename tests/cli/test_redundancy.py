"""Redundancy, and shared parameters, from the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.checkpoints import case, read_tree

CASE = case(7011).directory
STRATEGIES = ("--target-strategy", str(CASE / "dst_strategy.ckpt"), "--engine", "direct")


def test_a_target_without_redundancy(reshard: Callable[..., Any], tmp_path: Path) -> None:
    source = CASE / "full"
    whole = reshard("plan", source, *STRATEGIES[:2], "--json").json
    less = reshard("plan", source, *STRATEGIES[:2], "--remove-redundancy", "--json").json
    more = reshard("plan", source, *STRATEGIES[:2], "--remove-redundancy", "--replicas", "2", "--json").json
    assert less["written_bytes"] < more["written_bytes"] < whole["written_bytes"]
    shown = reshard("convert", source, tmp_path / "out", *STRATEGIES, "--remove-redundancy", "--replicas", "2")
    assert shown.code == 0
    assert "redundancy removed: each slice that ranks share is on 2 of them" in shown.out + shown.err
    assert reshard("verify", tmp_path / "out").code == 0
    held = read_tree(tmp_path / "out").values()
    assert sum(len(content) for rank in held for _, _, content in rank.values()) == more["written_bytes"]


def test_what_is_refused(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("convert", CASE / "full", tmp_path / "out", *STRATEGIES, "--replicas", "2")
    assert shown.code == 2
    assert "--replicas 2: only valid with --remove-redundancy" in shown.err
    shown = reshard("convert", CASE / "full", tmp_path / "out", "--engine", "direct", "--remove-redundancy")
    assert shown.code == 2
    assert "redundancy cannot be removed: the target has one rank" in shown.err
    shown = reshard("convert", CASE / "full", tmp_path / "out", *STRATEGIES, "--shared-parameters", "3")
    assert shown.code == 2
    assert "copies of stage 3 are to be taken of shared parameters (--shared-parameters)" in shown.err
