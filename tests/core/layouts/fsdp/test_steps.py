"""Trainings with many steps: which is read, and convert-latest, retention and --step."""

import os
import shutil
import time
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import LatestOutcome, LatestReport, convert_latest
from reshard.core.errors import CatalogError
from reshard.core.layouts.any_layout import tracked_steps
from reshard.core.layouts.survey import find_number, survey
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import read_safetensors
from tests.support.fsdp import FsdpCase, fsdp_case

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A training with the steps 3 and 20, of which the tracker names 3; each has an actor."""
    root = tmp_path / "training"
    for number in (3, 20):
        shutil.copytree(fsdp_case("fsdp1").root, root / f"global_step_{number}/actor")
        (root / f"global_step_{number}/data.pt").touch()
    (root / TRACKER).write_text("3")
    make_old(root)
    return root


def make_old(root: Path) -> None:
    long_ago = time.time() - 36000
    for file in root.rglob("*"):
        os.utime(file, (long_ago, long_ago))


def taken(root: Path, target: Path, **options: object) -> LatestReport:
    given = {"source": str(root), "target": str(target), "layout": "unified", "patience_seconds": 600}
    return convert_latest(LatestConversionRequest.model_validate(given | options))


def test_the_tracked_step_is_read(training: Path, tmp_path: Path) -> None:
    case = FsdpCase(training, fsdp_case("fsdp1").answer)
    report = convert(case.request(tmp_path / "out"))
    assert report.step == "3"
    assert report.notes[0] == "step 20 is newer, but skipped: the tracker names 3; step='20' reads it"
    assert read_safetensors(tmp_path / "out/model.safetensors") == case.want
    assert convert(case.request(tmp_path / "newer", step="20")).step == "20"


def test_steps_are_named_by_their_numbers(training: Path) -> None:
    with pytest.raises(CatalogError, match=r"training: has no step 4; it has 20, 3"):
        survey(str(training), "4")
    (training / TRACKER).write_text("5")
    with pytest.raises(CatalogError, match=rf"{TRACKER} names step 5, which is not there; there are 20, 3"):
        survey(str(training))
    (training / TRACKER).write_text("new")
    with pytest.raises(CatalogError, match=rf"{TRACKER}: names no step: 'new'"):
        survey(str(training))
    (training / TRACKER).write_text("7" * 100)
    with pytest.raises(CatalogError, match=rf"{TRACKER}: names no step"):
        survey(str(training))


def test_without_a_tracker_the_newest_complete_step_is_read(training: Path) -> None:
    (training / TRACKER).unlink()
    assert survey(str(training)).describe()["step"] == 20
    (training / "global_step_20/actor/model_world_size_3_rank_2.pt").unlink()
    found = survey(str(training)).describe()
    assert (found["step"], found["other_steps"]) == (3, [20])
    assert found["notes"] == [
        f"there is no {TRACKER}: step 3 is the newest complete one",
        "step 20 is skipped: model_world_size_3_rank_2.pt is missing",
    ]
    shutil.rmtree(training / "global_step_3")
    with pytest.raises(CatalogError, match="no step is complete: step 20 is skipped: model_world_size_3_rank_2.pt"):
        survey(str(training))


def test_a_newer_step_that_is_incomplete_is_said_to_be(training: Path) -> None:
    (training / "global_step_20/actor/model_world_size_3_rank_2.pt").unlink()
    assert survey(str(training)).describe()["notes"] == [
        "step 20 is newer, but skipped: it is incomplete: model_world_size_3_rank_2.pt is missing"
    ]


def test_an_empty_step_of_a_killed_training_is_passed_over(training: Path) -> None:
    (training / "global_step_30/actor").mkdir(parents=True)
    (training / "global_step_40").mkdir()
    assert survey(str(training)).describe()["step"] == 3


def test_a_step_may_have_several_models(training: Path) -> None:
    step = training / "global_step_3"
    shutil.copytree(fsdp_case("hsdp_2x2").root, step / "critic")
    found = survey(str(step)).describe()
    assert (found["step"], found["directory"]) == (3, str(step / "actor"))
    assert found["notes"] == ["actor is read, one of the step's models; beside it: critic"]
    assert survey(str(step / "critic")).describe()["ranks"] == 4
    shutil.rmtree(step / "actor")
    assert survey(str(step)).describe()["notes"] == []


def test_a_step_may_be_a_model_itself(training: Path, tmp_path: Path) -> None:
    """As a supervised training of verl's saves it."""
    for number in (3, 20):
        step = training / f"global_step_{number}"
        (step / "actor").rename(tmp_path / "moved")
        shutil.rmtree(step)
        (tmp_path / "moved").rename(step)
    assert survey(str(training)).describe()["step"] == 3
    assert survey(str(training / "global_step_20")).describe()["step"] == 20


def test_numbers_by_names_alone(training: Path) -> None:
    assert [find_number(str(training / path)) for path in ("", "global_step_20", "global_step_20/actor")] == [3, 20, 20]
    steps = tracked_steps(parse_url(str(training)), os.listdir(training))
    assert steps is not None
    assert (steps.directories, steps.read_tracker()) == ({3: "global_step_3", 20: "global_step_20"}, 3)


def test_a_tracked_step_that_is_not_there_is_told(training: Path, tmp_path: Path) -> None:
    (training / TRACKER).write_text("7")
    report = taken(training, tmp_path / "out", dry_run=True)
    assert (report.step, report.notes[1]) == ("3", f"step 7 is skipped: {TRACKER} names it, and it is not there")


def test_the_tracked_step_is_converted_once(training: Path, tmp_path: Path) -> None:
    report = taken(training, tmp_path / "out")
    assert (report.outcome, report.step, report.target) == (LatestOutcome.CONVERTED, "3", str(tmp_path / "out/3"))
    assert report.notes[0].startswith(f"step 20 is skipped: {TRACKER} does not name it yet; its last change was")
    assert read_safetensors(tmp_path / "out/3/model.safetensors") == fsdp_case("fsdp1").want
    assert taken(training, tmp_path / "out").outcome is LatestOutcome.NOTHING_NEW
    (training / TRACKER).write_text("20")
    report = taken(training, tmp_path / "out", keep_checkpoint_max=1)
    assert (report.step, report.removed) == ("20", ("3",))


@pytest.mark.parametrize("spoil", ["missing", "truncated"])
def test_a_step_without_all_ranks_is_never_taken(spoil: str, training: Path, tmp_path: Path) -> None:
    (training / TRACKER).write_text("20")
    file = training / "global_step_20/actor/model_world_size_3_rank_1.pt"
    data = file.read_bytes()
    file.unlink()
    if spoil == "truncated":
        file.write_bytes(data[:9000])
        make_old(training)
    report = taken(training, tmp_path / "out")
    assert report.step == "3"
    assert "model_world_size_3_rank_1.pt is " + ("missing" if spoil == "missing" else "damaged") in report.notes[0]


def test_a_step_that_is_being_written_is_awaited(training: Path, tmp_path: Path) -> None:
    """Also if the tracker names it already, as that of a training that saves asynchronously may."""
    (training / TRACKER).write_text("20")
    (training / "global_step_20/actor/model_world_size_3_rank_1.pt").unlink()
    (training / "global_step_20/actor/model_world_size_3_rank_0.pt").touch()
    report = taken(training, tmp_path / "out", dry_run=True)
    assert report.outcome is LatestOutcome.WOULD_WAIT
    assert report.notes[0].startswith("would wait for step 20: model_world_size_3_rank_1.pt is missing")


def test_a_step_whose_optimizer_is_being_written_is_awaited(training: Path, tmp_path: Path) -> None:
    shutil.rmtree(training / "global_step_20/actor")
    shutil.copytree(fsdp_case("tp_fsdp2").root, training / "global_step_20/actor")
    (training / "global_step_20/actor/optim_world_size_4_rank_3.pt").unlink()
    (training / TRACKER).write_text("20")
    (training / "global_step_20/actor/model_world_size_4_rank_0.pt").touch()
    report = taken(training, tmp_path / "out", dry_run=True)
    assert report.notes[0].startswith("would wait for step 20: optim_world_size_4_rank_3.pt is missing")


def test_without_a_tracker_files_have_to_settle(training: Path, tmp_path: Path) -> None:
    (training / TRACKER).unlink()
    (training / "global_step_20/actor/model_world_size_3_rank_0.pt").touch()
    report = taken(training, tmp_path / "out", dry_run=True, settle_seconds=300)
    assert report.outcome is LatestOutcome.WOULD_WAIT
    assert report.notes[0].startswith("would wait for step 20: its files have just changed")
    make_old(training)
    assert taken(training, tmp_path / "out").step == "20"
