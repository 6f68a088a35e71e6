"""convert-latest from a Checkpoint 2.0, whose tracker names the newest complete iteration."""

import os
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from reshard.core.conversion.latest import LatestOutcome, LatestReport, convert_latest
from reshard.core.errors import CatalogError, InputError
from reshard.core.request.latest import LatestConversionRequest
from tests.support.checkpoints import read_tree
from tests.support.dcp import read_dcp
from tests.support.iterations import IterationCase, iteration_case, tracked
from tests.support.training import latest_request, save_step


@pytest.fixture
def case(tmp_path: Path) -> IterationCase:
    return iteration_case(6).copied(tmp_path / "case")


def taken(case: IterationCase, target: Path, **options: object) -> LatestReport:
    given = {"source": str(case.source), "target": str(target), "target_strategy": str(case.target_strategy)}
    return convert_latest(LatestConversionRequest.model_validate(given | {"patience_seconds": 60} | options))


def track(case: IterationCase, number: int) -> None:
    (case.source / "latest_checkpointed_iteration.txt").write_text(str(number))


def test_the_tracked_iteration_is_converted_once(case: IterationCase, tmp_path: Path) -> None:
    long_ago = time.time() - 3600
    for file in (case.source / "iteration_00000045").iterdir():
        os.utime(file, (long_ago, long_ago))
    report = taken(case, tmp_path / "out")
    assert (report.outcome, report.step, report.target) == (LatestOutcome.CONVERTED, "40", str(tmp_path / "out/40"))
    [note] = report.notes
    assert note.startswith(
        "step 45 is skipped: latest_checkpointed_iteration.txt does not name it yet; its last change was"
    )
    assert read_tree(tmp_path / "out" / "40") == case.want
    assert taken(case, tmp_path / "out").outcome is LatestOutcome.NOTHING_NEW


def test_a_tracked_iteration_that_is_not_there_is_told(case: IterationCase, tmp_path: Path) -> None:
    track(case, 41)
    report = taken(case, tmp_path / "out", dry_run=True, patience_seconds=0, settle_seconds=0)
    assert report.step == "40"
    assert report.notes[1] == ("step 41 is skipped: latest_checkpointed_iteration.txt names it, and it is not there")


def test_an_iteration_that_is_being_written_is_awaited(case: IterationCase, tmp_path: Path) -> None:
    (case.source / "iteration_00000045").touch()
    for file in (case.source / "iteration_00000045").iterdir():
        file.touch()
    report = taken(case, tmp_path / "out", dry_run=True)
    assert report.outcome is LatestOutcome.WOULD_WAIT
    assert report.notes[0].startswith("would wait for step 45: latest_checkpointed_iteration.txt does not name it")


def test_the_next_iteration_gets_its_own_directory(case: IterationCase, tmp_path: Path) -> None:
    track(case, 33)
    assert taken(case, tmp_path / "out", patience_seconds=0, settle_seconds=0).step == "33"
    track(case, 40)
    report = taken(case, tmp_path / "out", keep_checkpoint_max=1, patience_seconds=0, settle_seconds=0)
    assert (report.step, report.removed) == ("40", ("33",))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["40"]


def test_steps_become_dcp_checkpoints_of_which_the_newest_stays(case: IterationCase, tmp_path: Path) -> None:
    given = {"layout": "dcp", "keep_checkpoint_max": 1, "patience_seconds": 0, "settle_seconds": 0}
    track(case, 33)
    assert taken(case, tmp_path / "out", **given).step == "33"
    track(case, 40)
    report = taken(case, tmp_path / "out", **given)
    assert (report.step, report.removed) == ("40", ("33",))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["40"]
    assert read_dcp(tmp_path / "out" / "40").keys() == {*case.whole, "global_step"}


def test_an_incomplete_tracked_iteration_is_passed_over(case: IterationCase, tmp_path: Path) -> None:
    next(case.iteration.glob("*-opt-0000001-*")).unlink()
    report = taken(case, tmp_path / "out", patience_seconds=0, settle_seconds=0)
    assert report.step == "33"
    assert any("step 40 is skipped: files are missing: llama-sft_1-opt-0000001" in note for note in report.notes)


def test_one_iteration_is_not_where_training_saves(case: IterationCase, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="is one iteration. Name the directory that training saves all into"):
        convert_latest(LatestConversionRequest(source=str(case.iteration), target=str(tmp_path / "out")))


def test_iterations_become_iterations_and_old_ones_go(case: IterationCase, tmp_path: Path) -> None:
    track(case, 33)
    options = {"layout": "checkpoint2", "keep_checkpoint_max": 1, "patience_seconds": 0, "settle_seconds": 0}
    first = taken(case, tmp_path / "out", **options)
    assert (first.step, first.target) == ("33", str(tmp_path / "out" / "iteration_00000033"))
    track(case, 40)
    report = taken(case, tmp_path / "out", **options)
    assert (report.step, report.removed) == ("40", ("33",))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["iteration_00000040", "latest_checkpointed_iteration.txt"]
    assert tracked(tmp_path / "out") == "40"
    assert taken(case, tmp_path / "out", **options).outcome is LatestOutcome.NOTHING_NEW


def test_steps_without_an_iteration_are_refused(tmp_path: Path) -> None:
    save_step(tmp_path / "training", "1_5")
    request = latest_request(tmp_path / "training", tmp_path / "out", layout="checkpoint2")
    with pytest.raises(InputError, match=r"step 1_5 of .* has no iteration number.* with iteration='N'"):
        convert_latest(request)


def test_the_target_is_the_directory_of_all_iterations(case: IterationCase, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"'iteration_00000040' is named after one iteration: name the directory"):
        taken(case, tmp_path / "iteration_00000040", layout="checkpoint2")
