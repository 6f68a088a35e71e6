"""Places where a target can be, and places where it cannot."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import TargetError
from tests.support.checkpoints import case
from tests.support.runs import partial

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_what_is_no_checkpoint_is_never_overwritten(target: Path) -> None:
    target.mkdir()
    (target / "thesis.tex").write_text("precious")
    with pytest.raises(TargetError, match=r"holds foreign files \(thesis.tex\)"):
        convert(FOUR_TO_THREE.request(target, overwrite=True))
    assert (target / "thesis.tex").read_text() == "precious"


def test_places_where_no_directory_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="out: cannot be made: .*file is a file"):
        convert(FOUR_TO_THREE.request(tmp_path / "file" / "out"))
    with pytest.raises(TargetError, match="/dev/null: is a file"):
        convert(FOUR_TO_THREE.request("/dev/null"))


def test_a_directory_that_must_not_be_written(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.target.place.os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(TargetError, match=f"out: cannot be made: {target.parent} is not writable"):
        convert(FOUR_TO_THREE.request(target))


def test_an_empty_directory_is_a_fine_target(target: Path) -> None:
    target.mkdir()
    assert convert(FOUR_TO_THREE.request(target)).committed


def test_a_file_at_the_target_is_refused(target: Path) -> None:
    target.write_text("")
    with pytest.raises(TargetError, match="is a file, not a directory"):
        convert(FOUR_TO_THREE.request(target))


def test_a_mount_point_is_refused_before_anything_is_written(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.mkdir()
    monkeypatch.setattr("reshard.core.target.place.os.path.ismount", lambda path: path == str(target))
    with pytest.raises(TargetError, match="is a mount point.*Name a directory in it"):
        convert(FOUR_TO_THREE.request(target))
    assert not partial(target).exists()
