"""convert-latest from a training of DeepSpeed, whose `latest` names the newest complete tag."""

import os
import shutil
import time
from pathlib import Path

import pytest

from reshard.core.conversion.latest import LatestOutcome, LatestReport, convert_latest
from reshard.core.errors import CatalogError
from reshard.core.request.latest import LatestConversionRequest
from tests.support.checkpoints import read_safetensors
from tests.support.deepspeed_files import DeepSpeedCase, deepspeed_case


@pytest.fixture
def source(tmp_path: Path) -> DeepSpeedCase:
    """A training with the steps 2 and 4, of which `latest` names 2."""
    found = deepspeed_case("case_zero3_bf16").copied(tmp_path / "training")
    shutil.copytree(found.root / "global_step2", found.root / "global_step4")
    return found


def taken(source: DeepSpeedCase, target: Path, **options: object) -> LatestReport:
    given = {"source": str(source.root), "target": str(target), "layout": "unified", "patience_seconds": 60}
    return convert_latest(LatestConversionRequest.model_validate(given | options))


def test_the_latest_tag_is_converted_once(source: DeepSpeedCase, tmp_path: Path) -> None:
    long_ago = time.time() - 3600
    for file in (source.root / "global_step4").iterdir():
        os.utime(file, (long_ago, long_ago))
    report = taken(source, tmp_path / "out")
    assert (report.outcome, report.step, report.target) == (LatestOutcome.CONVERTED, "2", str(tmp_path / "out/2"))
    assert report.notes[0].startswith("step 4 is skipped: latest does not name it yet; its last change was")
    assert read_safetensors(tmp_path / "out" / "2" / "model.safetensors") == source.want
    assert taken(source, tmp_path / "out").outcome is LatestOutcome.NOTHING_NEW
    (source.root / "latest").write_text("global_step4")
    report = taken(source, tmp_path / "out", keep_checkpoint_max=1)
    assert (report.step, report.removed) == ("4", ("2",))


def test_a_latest_tag_that_is_not_there_is_told(source: DeepSpeedCase, tmp_path: Path) -> None:
    (source.root / "latest").write_text("global_step9")
    report = taken(source, tmp_path / "out", dry_run=True)
    assert (report.step, report.notes) == ("4", ("step 9 is skipped: latest names it, and it is not there",))


def test_a_tag_that_is_being_written_is_awaited(source: DeepSpeedCase, tmp_path: Path) -> None:
    for file in (source.root / "global_step4").iterdir():
        file.touch()
    report = taken(source, tmp_path / "out", dry_run=True)
    assert report.outcome is LatestOutcome.WOULD_WAIT
    assert report.notes[0].startswith("would wait for step 4: latest does not name it yet")


@pytest.mark.parametrize("gone", ["*rank_1*", "*optim*", "*"])
def test_a_torn_tag_is_passed_over(source: DeepSpeedCase, gone: str, tmp_path: Path) -> None:
    (source.root / "latest").write_text("global_step4")
    for file in (source.root / "global_step4").glob(gone):
        file.unlink()
    report = taken(source, tmp_path / "out")
    assert report.step == "2"
    assert report.notes[0].startswith("step 4 is skipped: ")


def test_without_latest_no_tag_is_complete(source: DeepSpeedCase, tmp_path: Path) -> None:
    (source.root / "latest").unlink()
    for file in source.root.glob("*/*"):
        file.touch()
    report = taken(source, tmp_path / "out", dry_run=True)
    assert report.outcome is LatestOutcome.WOULD_WAIT


def test_one_tag_has_no_steps(source: DeepSpeedCase, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="is the directory of one tag. Name the directory that training saves all"):
        convert_latest(LatestConversionRequest(source=str(source.root / "global_step2"), target=str(tmp_path / "out")))
