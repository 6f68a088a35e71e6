"""Ranks and files that contradict a strategy."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.diagnosed import looked_at, only, problems, sharded
from tests.support.splitting import split_strategy
from tests.support.two_stages import ROWS, STAGES, strategy, write


def test_half_of_the_ranks(tmp_path: Path) -> None:
    write(tmp_path / "src", STAGES[:1])
    doubled = looked_at(tmp_path, STAGES)
    finding = problems(doubled)[0]
    assert finding.check == "ranks"
    assert finding.found == ("the checkpoint has 4 ranks, the strategy 8; missing: rank_4, rank_5, rank_6, rank_7")
    assert "a job of 2 times as many devices" in finding.means


def test_missing_ranks(tmp_path: Path) -> None:
    shutil.rmtree(write(tmp_path / "src") / "rank_2")
    finding = only(looked_at(tmp_path), "ranks")
    assert "missing: rank_2" in finding.found
    assert "were not copied" in finding.means
    assert "'reshard recover'" in finding.advice


def test_too_many_ranks(tmp_path: Path) -> None:
    write(tmp_path / "src", [*STAGES, {"net.l.2.wq": ROWS}, {"net.l.3.wq": ROWS}])
    found = problems(looked_at(tmp_path))
    assert found[0].found.startswith("the checkpoint has 16 ranks, the strategy 8; too many: rank_8, rank_9")
    assert "the checkpoint is from a job with 2 times as many devices" in found[0].means


@pytest.mark.parametrize("sizes", [(2, 1), (2, 4)])
def test_contents_are_not_judged_by_a_strategy_of_another_world_size(tmp_path: Path, sizes: tuple[int, int]) -> None:
    write(tmp_path / "src", STAGES[:1])
    resized = [{name: replace(lay, device_matrix=sizes) for name, lay in each.items()} for each in sharded(STAGES[:1])]
    diagnosis = looked_at(tmp_path, resized)
    assert diagnosis.findings[0].check == "ranks"
    assert not [finding for finding in diagnosis.findings if finding.check == "contents"]
    assert diagnosis.not_checked == ("contents",)
    assert "makes" not in dict(diagnosis.facts)


def test_contents_are_judged_without_a_rank_in_between(tmp_path: Path) -> None:
    shutil.rmtree(write(tmp_path / "src") / "rank_2")
    diagnosis = looked_at(tmp_path, sharded(STAGES))
    assert [finding.check for finding in problems(diagnosis)] == ["ranks", "contents"]
    assert diagnosis.not_checked == ()


def test_one_stage_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "src")
    [_, own] = split_strategy(strategy())
    finding = only(looked_at(tmp_path, own), "ranks", "note")
    assert finding.found == "the strategy is stage 1's own, of 4 ranks; the other 4 ranks hold other parameters"
    assert "name the directory" in finding.advice


def test_a_damaged_file(tmp_path: Path) -> None:
    file = write(tmp_path / "src") / "rank_5/net.ckpt"
    file.write_bytes(file.read_bytes()[:-9])
    finding = only(looked_at(tmp_path), "files")
    assert finding.found.startswith("rank_5's file cannot be used: ")
    assert "'reshard convert' with recover=True" in finding.advice


def test_files_with_the_same_problem_are_one_finding(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in (1, 5, 6):
        (tmp_path / f"src/rank_{rank}/net.ckpt").write_bytes(b"")
    finding = only(looked_at(tmp_path), "files")
    assert finding.found == "the files of ranks 1,5-6 cannot be used: the file is empty"


def test_a_file_cut_off_between_parameters(tmp_path: Path) -> None:
    write(tmp_path / "src")
    whole_file = (tmp_path / "src/rank_2/net.ckpt").read_bytes()
    first = checkpoint_bytes(("global_step", "Int32", (1,), np.int32(7).tobytes()))
    assert whole_file.startswith(first)
    (tmp_path / "src/rank_2/net.ckpt").write_bytes(first)
    found = problems(looked_at(tmp_path))
    assert found[0].found.startswith("rank_2's file cannot be used: seems to have been cut off after 1 parameter")


def test_redundancy_removed(tmp_path: Path) -> None:
    source = write(tmp_path / "full")
    write_strategy(strategy(), str(tmp_path / "strategy.ckpt"))
    same = {"source_strategy": str(tmp_path / "strategy.ckpt"), "target_strategy": str(tmp_path / "strategy.ckpt")}
    for format in ("ckpt", "safetensors"):
        shutil.rmtree(tmp_path / "src", ignore_errors=True)
        options = {"remove_redundancy": True, "format": format}
        convert(build_request(source=str(source), target=str(tmp_path / "src"), **same, **options))
        assert only(looked_at(tmp_path), "files", "note").found.startswith("redundancy was removed")
