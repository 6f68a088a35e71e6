"""`reshard join-parts`, and what it takes to get there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import case

CASE = case(7010).directory


def test_stages_from_two_machines(reshard: Callable[..., Any], tmp_path: Path) -> None:
    for stage in (0, 1):
        shown = reshard(
            "convert",
            CASE / "src",
            tmp_path / f"stage{stage}",
            "--source-strategy",
            CASE / f"src_stages/strategy_{4 * stage}.ckpt",
            "--target-strategy",
            CASE / "dst_strategy.ckpt",
            "--engine",
            "direct",
        )
        assert shown.code == 0
        assert (
            f"this is that stage's PART of the target, and {4 - 2 * stage} parameters are NOT in it"
            in shown.err + shown.out
        )
    parts = [tmp_path / "stage0", tmp_path / "stage1"]
    shown = reshard("join-parts", parts[0], tmp_path / "whole")
    assert shown.code == 2
    assert "no part has 4 parameters of the target's strategy" in shown.err
    shown = reshard("join-parts", *parts, tmp_path / "whole")
    assert shown.code == 0
    assert "the parts of stages 0, 1, 6 parameters on 2 ranks" in shown.out
    assert reshard("verify", tmp_path / "whole").code == 0
    assert reshard("inspect", tmp_path / "whole", "--json").json["kind"] == "converted checkpoint"
    found = reshard("inspect", tmp_path / "whole/rank_0", "--json").json
    assert [prefix["prefix"] for prefix in found["prefixes"]] == ["checkpoint_0"]
    assert found["parts"] == [0, 1]
    assert "parts       0, 1" in reshard("inspect", tmp_path / "whole/rank_0").out
    planned = reshard("plan", tmp_path / "whole", "--source-strategy", CASE / "dst_strategy.ckpt", "--json").json
    assert planned["source_world_size"] == 2


def test_the_demos_stages_which_share_their_embedding(reshard: Callable[..., Any], tmp_path: Path) -> None:
    make_demo(parse_url(str(tmp_path)))
    parts = [tmp_path / "stage0", tmp_path / "stage1"]
    for part, rank in zip(parts, (0, 4), strict=True):
        own = tmp_path / f"strategy/ckpt_strategy_rank_{rank}_rank_{rank}.ckpt"
        strategies = ("--source-strategy", own, "--target-strategy", tmp_path / "target_strategy", "--engine", "direct")
        shown = reshard("convert", tmp_path / "checkpoint", part, *strategies)
        assert "join the parts: reshard join-parts" in shown.out
    shown = reshard("join-parts", *parts, tmp_path / "whole")
    assert (shown.code, shown.err) == (0, "")
    assert "the parts of stages 0, 1, 114 parameters on 4 ranks" in shown.out
    assert reshard("verify", tmp_path / "whole").code == 0
    compared = ("--strategy-a", tmp_path / "strategy", "--strategy-b", tmp_path / "target_strategy")
    assert reshard("diff", tmp_path / "checkpoint", tmp_path / "whole", *compared).code == 0
    shown = reshard("join-parts", *parts, tmp_path / "other", "--shared-parameters", "2")
    assert shown.code == 2
    assert "but there are the parts of stages 0, 1" in shown.err
