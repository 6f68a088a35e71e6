"""Stages converted one by one are joined to one checkpoint, or nothing is made."""

import shutil
from pathlib import Path

import fsspec
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, StorageError, TargetError, notes_of
from reshard.core.request.conversion import build_request
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import read_ckpt, read_tree
from tests.support.joining import join_parts
from tests.support.notes import Notes
from tests.support.places import FIXTURES
from tests.support.stage_parts import CASE, Make, maker_of_parts

PARTS = FIXTURES / "subnetwork_parts"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker_of_parts(tmp_path)


@pytest.mark.parametrize("options", [{}, {"format": "safetensors", "write_crc": True}, {"write_crc": True}])
def test_parts_become_one_checkpoint(make: Make, tmp_path: Path, options: dict[str, object]) -> None:
    target = tmp_path / "joined"
    report = join_parts([make(1, **options), make(0, **options)], str(target))
    assert (report.stages, report.ranks, report.parameters) == ((0, 1), 2, 6)
    assert report.size_bytes == sum(path.stat().st_size for path in target.glob("rank_*/*"))
    assert {path.name for path in target.iterdir()} == {".reshard", "rank_0", "rank_1"}
    if not options:
        assert {str(path.relative_to(target)): read_ckpt(path) for path in target.glob("rank_*/*")} == {
            str(path.relative_to(PARTS)): read_ckpt(path) for path in PARTS.glob("rank_*/*")
        }
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    strategy = str(CASE / "dst_strategy.ckpt")
    again = tmp_path / "again"
    convert(
        build_request(
            source=str(target), target=str(again), source_strategy=strategy, target_strategy=strategy, format="ckpt"
        )
    )
    assert read_tree(again) == read_tree(CASE / "want")


def test_what_was_joined_already_is_not_joined_again(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    join_parts(parts, str(tmp_path / "joined"))
    before = (tmp_path / "joined/.reshard/manifest.json").stat()
    join_parts(parts, str(tmp_path / "joined"))
    assert (tmp_path / "joined/.reshard/manifest.json").stat().st_mtime_ns == before.st_mtime_ns


def test_a_part_of_the_joined_that_is_damaged_is_found(make: Make, tmp_path: Path) -> None:
    target = tmp_path / "joined"
    join_parts([make(0), make(1)], str(target))
    path = target / "rank_1/checkpoint_1_part1.ckpt"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    (target / "rank_0/checkpoint_0_part2.ckpt").write_bytes(b"")
    problems = verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert len(problems) == 2
    assert "its bytes are not those that were written" in problems[0]
    assert "checkpoint_0_part2.ckpt: does not belong to this checkpoint" in problems[1]


def test_what_a_killed_run_left_is_not_in_the_joined(make: Make, tmp_path: Path) -> None:
    left = tmp_path / "joined.reshard-partial/rank_0/.checkpoint_0_part0.ckpt.0123abcd.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    join_parts([make(0), make(1)], str(tmp_path / "joined"))
    assert sorted(path.name for path in (tmp_path / "joined/rank_0").iterdir()) == [
        "checkpoint_0_part0.ckpt",
        "checkpoint_0_part1.ckpt",
    ]


def interrupted(make: Make, tmp_path: Path) -> list[str]:
    """Parts, and beside `joined` what a run leaves that was killed when it had joined rank 0."""
    parts = [make(0), make(1)]
    join_parts(parts, str(tmp_path / "other"))
    (tmp_path / "other/.reshard/manifest.json").unlink()
    (tmp_path / "other/.reshard/records/rank_1.json").unlink()
    (tmp_path / "other").rename(tmp_path / "joined.reshard-partial")
    return parts


def test_ranks_that_a_killed_run_has_joined_are_not_copied_again(make: Make, tmp_path: Path) -> None:
    parts, notes = interrupted(make, tmp_path), Notes()
    file = Path("rank_0/checkpoint_0_part0.ckpt"), Path("rank_1/checkpoint_1_part1.ckpt")
    left = [(tmp_path / "joined.reshard-partial" / each).stat().st_ino for each in file]
    join_parts(parts, str(tmp_path / "joined"), notes)
    found = [(tmp_path / "joined" / each).stat().st_ino for each in file]
    assert (found[0] == left[0], found[1] == left[1]) == (True, False)
    assert notes.notes == ["resuming: 1 of 2 ranks are joined already; checking them"]
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


@pytest.mark.parametrize("damaged", ["rank_0/checkpoint_0_part1.ckpt", ".reshard/records/rank_0.json"])
def test_a_rank_whose_file_or_record_was_damaged_since_is_copied_again(
    make: Make, tmp_path: Path, damaged: str
) -> None:
    parts = interrupted(make, tmp_path)
    path = tmp_path / "joined.reshard-partial" / damaged
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-9])
    join_parts(parts, str(tmp_path / "joined"))
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


def test_a_joined_checkpoint_that_lost_its_manifest_gets_it_back(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    join_parts(parts, str(tmp_path / "joined"))
    (tmp_path / "joined/.reshard/manifest.json").unlink()
    join_parts(parts, str(tmp_path / "joined"))
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


def test_parts_are_not_joined_where_one_is_being_converted(make: Make, tmp_path: Path) -> None:
    """What is unfinished there would count as this join's earlier work."""
    parts = [make(0), make(1)]
    shutil.copytree(parts[0], tmp_path / "joined.reshard-partial")
    (tmp_path / "joined.reshard-partial/.reshard/manifest.json").unlink()
    with pytest.raises(TargetError, match=r"something else is unfinished in .*joined\.reshard-partial\. Finish that"):
        join_parts(parts, str(tmp_path / "joined"))
    assert (tmp_path / "joined.reshard-partial/rank_0/checkpoint_0_part0.ckpt").exists()


def test_to_another_storage(make: Make) -> None:
    target = "memory://join-parts/joined"
    fs = fsspec.filesystem("memory")
    try:
        join_parts([make(0), make(1)], target)
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        with pytest.raises(InputError, match=r"is not empty"):
            join_parts([make(0, prefix="x_"), make(1, prefix="x_")], target)
    finally:
        fs.rm("/join-parts", recursive=True)


def test_a_join_on_another_storage_goes_on_where_it_was_interrupted(make: Make) -> None:
    parts, target = [make(0), make(1)], "memory://join-parts/joined"
    fs = fsspec.filesystem("memory")
    try:
        join_parts(parts, target)
        files = [f"/join-parts/joined/rank_{rank}/checkpoint_{rank}_part0.ckpt" for rank in (0, 1)]
        written = [fs.created(file) for file in files]
        fs.rm("/join-parts/joined/.reshard/manifest.json")
        fs.rm("/join-parts/joined/.reshard/records/rank_1.json")
        join_parts(parts, target)
        assert [fs.created(file) == before for file, before in zip(files, written, strict=True)] == [True, False]
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        fs.pipe("/join-parts/joined/.reshard/manifest.json", b"{")
        with pytest.raises(TargetError, match=r"manifest\.json: not a readable manifest: (?!.*overwrite)"):
            join_parts(parts, target)
    finally:
        fs.rm("/join-parts", recursive=True)


def test_an_interrupted_join_says_what_it_leaves(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, target = [make(0), make(1)], tmp_path / "joined"

    def fails(*_: object, **__: object) -> None:
        raise StorageError("the disk is broken")

    monkeypatch.setattr("reshard.core.target.target.Target.commit", fails)
    with pytest.raises(StorageError) as caught:
        join_parts(parts, str(target))
    [note] = notes_of(caught.value)
    assert note.startswith(f"left in {target}.reshard-partial: ")
    assert note.endswith(f", 2 of 2 ranks done: the same command resumes it, 'reshard clean {target}' removes it")


def test_links_where_parts_are_joined(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    (tmp_path / "joined.reshard-partial").symlink_to(parts[0])
    with pytest.raises(TargetError, match="joined.reshard-partial: is a link to"):
        join_parts(parts, str(tmp_path / "joined"))
    assert not verify_target(parts[0], VerifyLevel.CHECKSUM).problems


def test_a_device_in_the_place_of_a_parts_file(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    [file] = (Path(parts[0]) / "rank_0").iterdir()
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="a device, not a regular file"):
        join_parts(parts, str(tmp_path / "joined"))
