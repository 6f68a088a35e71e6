"""Strategy directories as MindFormers leaves them: with the merged strategy beside the ranks' own."""

import shutil
from pathlib import Path

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import case
from tests.support.diagnosed import diagnose

STAGES = case(7001)
"""From and to two stages."""


def test_directories_with_merged_strategies_convert_and_say_so(tmp_path: Path) -> None:
    for side in ("src", "dst"):
        shutil.copytree(STAGES.directory / f"{side}_stages", tmp_path / side)
        shutil.copyfile(STAGES.directory / f"{side}_strategy.ckpt", tmp_path / side / "merged_ckpt_strategy.ckpt")
        (tmp_path / side / "merge_succeed.txt").touch()
    given = {"source_strategy": str(tmp_path / "src"), "target_strategy": str(tmp_path / "dst")}
    report = convert(STAGES.request(tmp_path / "out", **given))
    assert sum("is a merged strategy, and agrees with the files beside it" in note for note in report.notes) == 2
    diagnosis = diagnose(str(STAGES.directory / "src"), str(tmp_path / "src"))
    assert diagnosis.fits
    assert any("is a merged strategy, and agrees" in text for _, text in diagnosis.facts)
