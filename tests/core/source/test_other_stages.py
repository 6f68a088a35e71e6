"""The first stage by itself: its strategy may be that of a checkpoint without stages, which lacks parameters."""

import shutil
from pathlib import Path

import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.errors import PlanError
from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.checkpoints import CONVERSIONS

CASE = CONVERSIONS / "case_7010"


@pytest.fixture
def alone(tmp_path: Path) -> ConversionRequest:
    for rank in range(4):
        shutil.copytree(CASE / f"src/rank_{rank}", tmp_path / f"src/rank_{rank}")
    (tmp_path / "strategies").mkdir()
    shutil.copy(CASE / "src_stages/strategy_0.ckpt", tmp_path / "strategies/strategy_0.ckpt")
    return build_request(
        source=str(tmp_path / "src"),
        target=str(tmp_path / "out"),
        source_strategy=str(tmp_path / "strategies/strategy_0.ckpt"),
        target_strategy=str(CASE / "dst_strategy.ckpt"),
    )


def test_it_is_refused_without_a_sign_of_other_stages(alone: ConversionRequest) -> None:
    beside = Path(alone.source_strategy).parent
    shutil.copy(beside / "strategy_0.ckpt", beside / "strategy_1.ckpt")
    (beside / "strategy_2.ckpt").write_bytes(b"none")
    message = r"4 parameters of the target's strategy are in no source file .*put another stage's strategy beside"
    with pytest.raises(PlanError, match=message):
        make_plan(alone)
    make_plan(alone.model_copy(update={"allow_missing": ["*"]}))


def test_ranks_or_strategies_are_signs_of_other_stages(alone: ConversionRequest) -> None:
    shutil.copytree(CASE / "src/rank_4", Path(alone.source, "rank_4"))
    with pytest.raises(Exception, match=r"another checkpoint's, or one pipeline stage's"):
        make_plan(alone)
    for rank in range(5, 8):
        shutil.copytree(CASE / f"src/rank_{rank}", Path(alone.source, f"rank_{rank}"))
    assert make_plan(alone).part == 0
    for rank in range(4, 8):
        shutil.rmtree(Path(alone.source, f"rank_{rank}"))
    shutil.copy(CASE / "src_stages/strategy_4.ckpt", Path(alone.source_strategy).parent)
    assert make_plan(alone).part == 0
