"""`reshard doctor`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.strategy.files import write_strategy
from tests.support.places import FIXTURES
from tests.support.two_stages import STAGES, strategy, write

SIDES = (("source", "src_strategy.ckpt"), ("target", "dst_strategy.ckpt"))


def checked(reshard: Callable[..., Any], tmp_path: Path, *options: str, stages: Any = STAGES) -> Any:
    write(tmp_path / "src")
    write_strategy(strategy(stages), str(tmp_path / "strategy.ckpt"))
    return reshard("doctor", tmp_path / "src", "--source-strategy", tmp_path / "strategy.ckpt", *options)


def test_they_fit(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = checked(reshard, tmp_path)
    assert shown.code == 0, shown.err
    assert "answer      CONSISTENT, whole shapes not confirmed: " in shown.out
    assert "shapes      not confirmed for 6 parameters, " in shown.out
    assert "network's: net.embed.w [8, 8], net.l.*.wq [8, 8], " in shown.out
    assert "check     result\nranks     ok\nfiles     ok\n" in shown.out


def test_they_do_not(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = checked(reshard, tmp_path, stages=STAGES[::-1])
    assert shown.code == 1
    assert "answer      DOES NOT FIT: " in shown.out
    assert "\nstages    1 problem\n" in shown.out
    assert "\nPROBLEM, stages\n  found  stages are in another order: " in shown.out
    assert "\n  means  the strategy's files were merged under wrong stage numbers" in shown.out
    assert "\n  do     merge the ranks' files again" in shown.out


def test_json(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = checked(reshard, tmp_path, "--json", stages=STAGES[::-1])
    assert (shown.code, shown.json["fits"], shown.json["findings"][0]["check"]) == (1, False, "stages")


def test_without_a_strategy(reshard: Callable[..., Any]) -> None:
    source = FIXTURES / "conversions/case_7001/src"
    shown = reshard("doctor", source)
    assert shown.code == 2
    assert "needs       a strategy of 8 ranks, of 2 stages it seems" in shown.out
    assert "answer      UNKNOWN: there is no strategy to compare with" in shown.out
    assert shown.err == (
        f"reshard: error: {source}: there is no strategy to compare the checkpoint with: pass --source-strategy\n"
    )
    shown = reshard("doctor", source, "--json")
    assert (shown.code, shown.json["fits"], shown.json["strategy"]) == (2, None, "")


def test_what_needs_no_strategy(reshard: Callable[..., Any]) -> None:
    for source in (FIXTURES / "conversions/case_7001/full", FIXTURES / "formats/plain.ckpt"):
        shown = reshard("doctor", source)
        assert (shown.code, shown.err) == (0, "")
    # whose slices may be in other ranks' files
    assert reshard("doctor", FIXTURES / "formats/redundancy_removed/src_safetensors/rank_0").code == 2


def test_what_reshard_converted_knows_its_strategy(reshard: Callable[..., Any], tmp_path: Path) -> None:
    case = FIXTURES / "conversions/case_7009"
    strategies = [f"--{side}-strategy={case / name}" for side, name in SIDES]
    assert reshard("convert", case / "src", tmp_path / "out", *strategies, "--engine=direct").code == 0
    shown = reshard("doctor", tmp_path / "out")
    assert shown.code == 0, shown.err
    assert "answer      CONSISTENT, whole shapes confirmed: " in shown.out
    assert f"strategy    {tmp_path / 'out'}/.reshard/plan.json.gz: 1 stage of 3 devices" in shown.out


def test_what_cannot_be_read(reshard: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path / "src")
    assert reshard("doctor", tmp_path / "nothing").code == 2
    assert reshard("doctor", tmp_path / "src", "--source-strategy", tmp_path / "nothing").code == 2


def test_an_encrypted_checkpoint(reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_KEY", "0123456789abcdef")
    path = FIXTURES / "formats/encrypted_AES-GCM.ckpt"
    assert reshard("doctor", path).code == 2
    assert reshard("doctor", path, "--decrypt-key", "env:RESHARD_KEY").code == 0
