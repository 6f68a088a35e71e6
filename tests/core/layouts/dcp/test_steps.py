"""Directories with a DCP checkpoint for each step of a training, as torchtitan saves them."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import LatestOutcome, LatestReport, convert_latest
from reshard.core.errors import CatalogError, InputError
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.source.description import describe
from tests.support.checkpoints import read_safetensors
from tests.support.dcp import dcp_case
from tests.support.diagnosed import diagnose

UNEVEN = dcp_case("fsdp_uneven")
FILE = "model.safetensors"


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Steps 500 and 1000; of step 1500 `.metadata` is not yet there."""
    root = tmp_path / "checkpoint"
    for number in (500, 1000, 1500):
        shutil.copytree(UNEVEN.source, root / f"step-{number}")
    (root / "step-1500/.metadata").unlink()
    for path in root.rglob("*.distcp"):
        os.utime(path, (0, 0))  # nothing is being written
    return root


def latest(training: Path, target: Path, **options: Any) -> LatestReport:
    given: dict[str, Any] = {"source": str(training), "target": str(target), "layout": "unified", "workers": 1}
    return convert_latest(LatestConversionRequest(**given | options))


def test_the_newest_complete_step_is_converted(training: Path, tmp_path: Path) -> None:
    report = convert(UNEVEN.request(tmp_path / "out", training, layout="unified", verify="content"))
    assert read_safetensors(tmp_path / "out" / FILE) == UNEVEN.whole
    assert report.step == "1000"
    assert report.notes[:2] == (
        "using step 1000, the newest that is complete",
        "ignored newer steps without .metadata: 1500",
    )
    document = describe(str(training))
    assert (document["step"], document["other_steps"]) == (1000, [500, 1500])
    assert diagnose(str(training), step="500").fits


def test_a_step_is_named(training: Path, tmp_path: Path) -> None:
    report = convert(UNEVEN.request(tmp_path / "out", training, step="500"))
    assert (report.step, report.notes[:1]) == ("500", ())
    with pytest.raises(InputError, match="has no step 7; it has 1500, 1000, 500"):
        convert(UNEVEN.request(tmp_path / "other", training, step="7"))
    with pytest.raises(
        InputError, match=r"step-1500: has files of a DCP checkpoint, but no \.metadata, which is writt"
    ):
        convert(UNEVEN.request(tmp_path / "other", training, step="1500"))
    with pytest.raises(InputError, match="without steps or prefixes"):
        convert(UNEVEN.request(tmp_path / "other", training, source_prefix="llama"))


def test_without_a_complete_step_nothing_is_converted(training: Path, tmp_path: Path) -> None:
    for number in (500, 1000):
        (training / f"step-{number}/.metadata").unlink()
    with pytest.raises(InputError, match=r"none of its steps has \.metadata, which is written last: 1500, 1000, 500"):
        convert(UNEVEN.request(tmp_path / "out", training))


def test_steps_beside_an_index_are_not_those_of_the_directory(training: Path, tmp_path: Path) -> None:
    save_file({"w": np.zeros(4, np.float32)}, training / "a.safetensors")
    (training / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    with pytest.raises(CatalogError, match="is a unified checkpoint, and has no steps: convert it"):
        latest(training, tmp_path / "out")


def test_two_names_of_one_step_are_refused(training: Path, tmp_path: Path) -> None:
    (training / "step-500").rename(training / "step_1000")
    with pytest.raises(InputError, match=r"step-1000, step_1000 are one step: which one is right\?"):
        convert(UNEVEN.request(tmp_path / "out", training))


def test_other_directories_of_steps_are_not_of_dcp(tmp_path: Path) -> None:
    for name in ("step-1", "step-2"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "net.ckpt").write_bytes(b"")
    with pytest.raises(InputError) as refused:
        convert(UNEVEN.request(tmp_path / "out", tmp_path / "src"))
    assert "DCP" not in str(refused.value)


def test_steps_are_converted_as_they_come_and_old_ones_removed(training: Path, tmp_path: Path) -> None:
    target = tmp_path / "converted"
    report = latest(training, target, keep_checkpoint_max=1)
    assert (report.outcome, report.step) == (LatestOutcome.CONVERTED, "1000")
    assert report.notes[0].startswith("step 1500 is skipped: .metadata is not there yet")
    assert read_safetensors(target / "1000" / FILE) == UNEVEN.whole
    assert latest(training, target).outcome is LatestOutcome.NOTHING_NEW
    shutil.copy(UNEVEN.source / ".metadata", training / "step-1500/.metadata")
    report = latest(training, target, keep_checkpoint_max=1)
    assert (report.outcome, report.step, report.removed) == (LatestOutcome.CONVERTED, "1500", ("1000",))
    assert [path.name for path in target.iterdir()] == ["1500"]


def test_a_step_that_lacks_a_file_is_passed_over(training: Path, tmp_path: Path) -> None:
    (training / "step-1000/__2_0.distcp").unlink()
    report = latest(training, tmp_path / "converted")
    assert report.step == "500"
    assert "step 1000 is skipped: files are missing: __2_0.distcp" in report.notes
    (training / "step-500/.metadata").write_bytes(b"")
    with pytest.raises(InputError, match=r"step 500 is skipped: .*step-500/.metadata: is not the metadata of a DCP"):
        latest(training, tmp_path / "other")
