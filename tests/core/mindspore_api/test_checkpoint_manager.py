import os
from pathlib import Path

import pytest

from reshard.mindspore import CheckpointManager


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for number, name in enumerate(["CKP-1_1.ckpt", "CKP-1_2.ckpt", "CKP-1_3.ckpt"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 + 60 * number,) * 2)
    return tmp_path


def updated(directory: Path, prefix: str = "CKP", format: str = "ckpt") -> CheckpointManager:
    manager = CheckpointManager(format)
    manager.update_ckpoint_filelist(str(directory), prefix)
    return manager


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_only_files_of_the_prefix_and_numbers_count(directory: Path) -> None:
    for name in ("CKP_1-1_1.ckpt", "CKP-1_1_breakpoint.ckpt", "CKP-1_1.safetensors", "CKP-graph.meta", "CKP-a.ckpt"):
        (directory / name).touch()
    manager = updated(directory)
    assert sorted(manager.ckpoint_filelist) == [str(directory / f"CKP-1_{number}.ckpt") for number in (1, 2, 3)]
    assert manager.ckpoint_num == 3
    assert updated(directory, "CKP_1").ckpoint_num == 1
    assert updated(directory, format="safetensors").ckpoint_num == 1


def test_the_oldest_is_removed(directory: Path) -> None:
    manager = updated(directory)
    manager.remove_oldest_ckpoint_file()
    assert names(directory) == ["CKP-1_2.ckpt", "CKP-1_3.ckpt"]
    assert manager.ckpoint_num == 2


def test_of_those_of_some_minutes_the_first_is_kept(directory: Path) -> None:
    manager = updated(directory)
    manager.keep_one_ckpoint_per_minutes(2, 1000 + 140.0)
    assert names(directory) == ["CKP-1_1.ckpt", "CKP-1_2.ckpt"]


def test_a_file_that_cannot_be_removed_is_told(directory: Path) -> None:
    (directory / "CKP-9_9.ckpt" / "file").mkdir(parents=True)
    manager = updated(directory)
    with pytest.warns(UserWarning, match="an old checkpoint file was not removed: .*CKP-9_9.ckpt"):
        manager.remove_ckpoint_file(str(directory / "CKP-9_9.ckpt"))
    assert manager.ckpoint_num == 4


def test_a_file_that_vanishes_is_no_candidate(directory: Path) -> None:
    manager = updated(directory)
    (directory / "CKP-1_1.ckpt").unlink()
    manager.remove_oldest_ckpoint_file()
    assert names(directory) == ["CKP-1_3.ckpt"]


def test_removing_the_oldest_of_none(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="there is no checkpoint file to remove"):
        updated(tmp_path).remove_oldest_ckpoint_file()
