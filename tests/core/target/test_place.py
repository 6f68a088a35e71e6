"""Places where a target can be, and places where it cannot."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import TargetError
from reshard.core.storage.leases.local_lease import exclusive, remove_lease_directory
from reshard.core.storage.publishing import remove_tree, replaced_location, working_location
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.claim import leases_of
from reshard.core.target.place import check_beside, check_new_place
from tests.support.checkpoints import case
from tests.support.interleaving import interleaved
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


# ---- another run's steps, between any two looks of the checks ----


def take_gate(final: Location) -> None:
    with exclusive(leases_of(final)):
        pass


def leave(final: Location) -> None:
    remove_lease_directory(leases_of(final), working_location(final))


def write_files(final: Location) -> None:
    """What a run has written when it is about to publish: its identity before its files, its manifest last."""
    for name in (".reshard/identity", "rank_0/net0.ckpt", ".reshard/manifest.json"):
        path = Path(working_location(final).path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def give_files_their_name(final: Location) -> None:
    os.rename(working_location(final).path, final.path)


def end_and_begin_again(final: Location) -> None:
    give_files_their_name(final)
    take_gate(final)


def move_aside(final: Location) -> None:
    os.rename(final.path, replaced_location(final).path)


def remove_replaced(final: Location) -> None:
    remove_tree(replaced_location(final))


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ([], take_gate),
        ([take_gate], leave),
        ([take_gate], write_files),
        ([write_files], give_files_their_name),
        ([write_files], end_and_begin_again),
        ([write_files, give_files_their_name], move_aside),
        ([write_files, give_files_their_name, move_aside], remove_replaced),
    ],
)
def test_a_run_that_begins_or_ends_meanwhile_is_not_taken_for_something_foreign(
    before: list[Callable[[Location], None]], step: Callable[[Location], None], tmp_path: Path
) -> None:
    def check(final: Location) -> None:
        check_new_place(final)
        check_beside(final)

    def prepared(number: int) -> Location:
        (tmp_path / str(number)).mkdir()
        final = parse_url(str(tmp_path / f"{number}/out"))
        for each in before:
            each(final)
        return final

    assert interleaved(check, step, prepared) > 5
