"""`reshard join-parts`, and what it takes to get there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import reshard as library
from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import case
from tests.support.signed_sources import Keys
from tests.support.stage_parts import maker_of_parts

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


def test_a_signed_join_of_signed_parts(reshard: Callable[..., Any], tmp_path: Path) -> None:
    keys, make = Keys(tmp_path / "keys"), maker_of_parts(tmp_path)
    parts, whole = [make(stage, sha256="target") for stage in (0, 1)], tmp_path / "whole"
    for part in parts:
        assert reshard("sign", part, "--key", keys.private).code == 0
    signing = ("--sign", keys.private, "--require-signed-by", keys.public)
    shown = reshard("join-parts", *parts, whole, *signing)
    assert shown.code == 0
    assert "SHA-256     of 4 files, and of 4 source files" in shown.out
    assert "2 earlier conversions in its chain" in shown.out
    assert reshard("verify", whole, "--signed-by", keys.public, "--provenance").code == 0
    shown = reshard("attest", whole, "--signed-by", keys.public)
    assert "values              files copied from parts, and every byte read back" in shown.out
    assert f"parts               {parts[0]}, {parts[1]}" in shown.out
    shown = reshard("history", whole, "--signed-by", keys.public)
    assert shown.code == 0
    assert "the chain is intact: each statement is the one that the next one refers to, and all signatures" in shown.out
    Path(parts[0], "model.sig").unlink()
    shown = reshard("join-parts", *parts, tmp_path / "other", "--require-signed-by", keys.public)
    assert (shown.code, shown.out) == (2, "")
    assert f"{parts[0]}: is not joined, because of its signature:" in shown.err


def test_from_a_program(tmp_path: Path) -> None:
    keys, make = Keys(tmp_path / "keys"), maker_of_parts(tmp_path)
    report = library.join_parts([make(0), make(1)], tmp_path / "whole", sha256="source", sign=keys.private)
    assert report.custody is not None
    assert (report.custody.files, report.custody.source_files, report.custody.predecessors) == (4, 4, 0)
    assert not library.verify(tmp_path / "whole", signed_by=keys.public, provenance=True).problems
