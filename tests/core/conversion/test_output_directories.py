"""Conversions of what MindFormers leaves in a training's directory of outputs, named as a whole."""

import json
import os
import shutil
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.training_steps import FoundSteps, StepWatch
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.source.description import describe
from tests.support.checkpoints import read_tree
from tests.support.iterations import iteration_case
from tests.support.training import CASE, LONG_AGO_SECONDS, RANKS, latest_request, save_step

ITERATIONS = iteration_case(2)


def save(output: Path, step: str, folder: str = "checkpoint", age_seconds: float = LONG_AGO_SECONDS) -> None:
    """As MindFormers names files: the rank is in the prefix."""
    for rank in RANKS:
        save_step(output / folder, step, ranks=[rank], prefix=f"llama_rank_{rank}", age_seconds=age_seconds)


def record(output: Path, step: str, ranks: range = RANKS) -> None:
    """Meta files that name a step."""
    for rank in ranks:
        epoch, number = map(int, step.split("_"))
        document = {"last_epoch": epoch, "last_step": number, "last_ckpt_file": f"llama_rank_{rank}-{step}.ckpt"}
        (output / "checkpoint" / f"rank_{rank}" / "meta.json").write_text(json.dumps(document))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A training's outputs: two steps, and the strategy."""
    output = tmp_path / "output"
    save(output, "1_20")
    save(output, "1_40")
    record(output, "1_40")
    for rank in RANKS:
        (output / "strategy").mkdir(exist_ok=True)
        shutil.copyfile(CASE.directory / "src_strategy.ckpt", output / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt")
    (output / "resume_record").mkdir()
    (output / "resume_record" / "latest_checkpointed_iteration.txt").write_text("llama_rank_0-1_20.ckpt\n")
    return output


def test_the_only_checkpoint_is_converted(output: Path, tmp_path: Path) -> None:
    report = convert(CASE.request(tmp_path / "out", source=str(output)))
    assert (report.source, report.step) == (str(output / "checkpoint"), "1_40")
    assert read_tree(tmp_path / "out") == CASE.want
    assert describe(str(output))["url"] == str(output / "checkpoint")


def test_network_and_all_are_two_checkpoints(output: Path, tmp_path: Path) -> None:
    save(output, "1_40", "checkpoint_network")
    with pytest.raises(InputError, match=r"has several checkpoints; name the one that is meant:"):
        convert(CASE.request(tmp_path / "out", source=str(output)))
    convert(CASE.request(tmp_path / "out", source=str(output / "checkpoint_network")))
    assert read_tree(tmp_path / "out") == CASE.want


def test_the_strategy_of_a_job_that_was_started_later_is_named_not_assumed(output: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        convert(CASE.request(tmp_path / "out", source=str(output), source_strategy=""))
    assert str(caught.value) == (
        f"{output}/checkpoint: 4 ranks: several ranks need a source strategy, none is given, and the one beside the "
        f"checkpoint is not used automatically:\n  {output}/strategy: is consistent, but newer than the checkpoint: it "
        "was copied later, or written by a later job\nGive the strategy of the job that saved it with "
        "'source_strategy'; 'reshard doctor' checks it"
    )


def test_the_strategy_of_the_job_that_saved_the_checkpoint_is_used(output: Path, tmp_path: Path) -> None:
    for file in (output / "strategy").iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    convert(CASE.request(tmp_path / "out", source=str(output), source_strategy=""))
    assert read_tree(tmp_path / "out") == CASE.want


def test_a_transformed_checkpoint_and_a_unified_one(tmp_path: Path) -> None:
    for rank in RANKS:
        folder = tmp_path / "output" / "transformed_checkpoint" / "llama" / f"rank_{rank}"
        shutil.copytree(CASE.directory / "src" / f"rank_{rank}", folder)
        (folder.parent / f"transform_succeed_rank_{rank}.txt").touch()
    convert(CASE.request(tmp_path / "out", source=str(tmp_path / "output")))
    assert read_tree(tmp_path / "out") == CASE.want

    whole: dict[str, object] = {"target_strategy": "", "layout": "unified", "unified_naming": "mindspore"}
    unified = tmp_path / "another" / "unified_checkpoint"
    convert(CASE.request(unified, **whole))
    request = {"target_strategy": str(CASE.directory / "dst_strategy.ckpt"), "format": "ckpt"}
    convert(build_request(source=str(unified.parent), target=str(tmp_path / "again"), **request))
    assert read_tree(tmp_path / "again") == CASE.want


def test_iterations_of_a_checkpoint_2_among_the_outputs(tmp_path: Path) -> None:
    shutil.copytree(ITERATIONS.source, tmp_path / "output" / "checkpoint")
    report = convert(ITERATIONS.request(tmp_path / "out", tmp_path / "output"))
    assert report.source == str(tmp_path / "output" / "checkpoint")
    assert read_tree(tmp_path / "out") == ITERATIONS.want


class TestLatest:
    def find(self, output: Path, target: Path, **options: object) -> FoundSteps:
        return StepWatch(latest_request(output, target, **options), RANKS).find(waits=False)

    def test_a_recorded_step_needs_no_settling(self, output: Path, tmp_path: Path) -> None:
        save(output, "1_40", age_seconds=0)
        found = self.find(output, tmp_path / "out")
        assert (found.source, found.awaited) == (str(output / "checkpoint"), ())
        assert found.newest
        assert str(found.newest.step) == "1_40"

    def test_one_that_is_not_recorded_yet_is_awaited(self, output: Path, tmp_path: Path) -> None:
        save(output, "1_60", age_seconds=100)
        record(output, "1_60", range(3))
        found = self.find(output, tmp_path / "out")
        assert found.newest
        assert str(found.newest.step) == "1_40"
        [awaited] = found.awaited
        assert (str(awaited.step), awaited.incomplete) == ("1_60", "meta.json of rank_3 does not name it yet")

    def test_it_counts_when_nothing_changed_for_long(self, output: Path, tmp_path: Path) -> None:
        """A job that saves asynchronously never records its last checkpoint."""
        save(output, "1_60", age_seconds=601)
        found = self.find(output, tmp_path / "out")
        assert found.newest
        assert str(found.newest.step) == "1_60"
