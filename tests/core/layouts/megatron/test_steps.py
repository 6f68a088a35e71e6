"""convert-latest from a training of Megatron, whose tracker names the newest complete iteration."""

import os
import shutil
import time
from pathlib import Path

import pytest

from reshard.core.conversion.latest import LatestOutcome, LatestReport, convert_latest
from reshard.core.errors import CatalogError
from reshard.core.request.latest import LatestConversionRequest
from tests.support.checkpoints import read_safetensors
from tests.support.megatron_sources import MODEL_FILE, MegatronSource, megatron_source

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture
def source(tmp_path: Path) -> MegatronSource:
    """A training with the iterations 3 and 5, of which the tracker names 3."""
    found = megatron_source("legacy_tp2_pp2").copied(tmp_path / "training")
    shutil.copytree(found.iteration, tmp_path / "5")
    (tmp_path / "5").rename(found.root / "iter_0000005")
    return found


def taken(source: MegatronSource, target: Path, **options: object) -> LatestReport:
    given = {"source": str(source.root), "target": str(target), "layout": "unified", "patience_seconds": 60}
    return convert_latest(LatestConversionRequest.model_validate(given | options))


def test_the_tracked_iteration_is_converted_once(source: MegatronSource, tmp_path: Path) -> None:
    long_ago = time.time() - 3600
    for file in (source.root / "iter_0000005").rglob("*.pt"):
        os.utime(file, (long_ago, long_ago))
    report = taken(source, tmp_path / "out")
    assert (report.outcome, report.step, report.target) == (LatestOutcome.CONVERTED, "3", str(tmp_path / "out/3"))
    assert report.notes[0].startswith(f"step 5 is skipped: {TRACKER} does not name it yet; its last change was")
    assert read_safetensors(tmp_path / "out" / "3" / "model.safetensors") == source.want
    assert taken(source, tmp_path / "out").outcome is LatestOutcome.NOTHING_NEW
    (source.root / TRACKER).write_text("5")
    assert taken(source, tmp_path / "out").step == "5"


def test_a_tracked_iteration_that_is_not_there_is_told(source: MegatronSource, tmp_path: Path) -> None:
    (source.root / TRACKER).write_text("7")
    report = taken(source, tmp_path / "out", dry_run=True)
    assert (report.step, report.notes) == ("5", (f"step 7 is skipped: {TRACKER} names it, and it is not there",))


def test_a_directory_counts_by_its_own_name(source: MegatronSource, tmp_path: Path) -> None:
    """A copied directory has files of another iteration; retention then found no conversion to remove."""
    taken(source, tmp_path / "out", keep_checkpoint_max=1)
    (source.root / TRACKER).write_text("5")
    report = taken(source, tmp_path / "out", keep_checkpoint_max=1)
    assert (report.step, report.removed) == ("5", ("3",))
    assert report.conversion is not None
    assert report.conversion.step == "5"
    assert f"{source.root}/iter_0000005: its files say that they are of iteration 3" in report.conversion.notes


def test_an_iteration_that_is_being_written_is_awaited(source: MegatronSource, tmp_path: Path) -> None:
    for file in (source.root / "iter_0000005").rglob("*.pt"):
        file.touch()
    report = taken(source, tmp_path / "out", dry_run=True)
    assert report.outcome is LatestOutcome.WOULD_WAIT
    assert report.notes[0].startswith(f"would wait for step 5: {TRACKER} does not name it yet")


def test_a_tracked_iteration_without_a_file_is_passed_over(source: MegatronSource, tmp_path: Path) -> None:
    (source.root / TRACKER).write_text("5")
    (source.root / "iter_0000005" / "mp_rank_01_000" / MODEL_FILE).unlink()
    report = taken(source, tmp_path / "out")
    assert report.step == "3"
    assert f"{MODEL_FILE} is not in mp_rank_01_000" in report.notes[0]


def test_one_iteration_has_no_steps(source: MegatronSource, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="is one iteration. Name the directory that training saves all into"):
        convert_latest(LatestConversionRequest(source=str(source.root / "iter_0000003"), target=str(tmp_path / "out")))
