"""Local files appear at once, and nothing is changed through links."""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from reshard.core.errors import StorageError
from reshard.core.storage import disk
from reshard.core.storage.atomic_rename import open_temporary, remove_abandoned, rename_into_place
from reshard.core.storage.copying import copy_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes


def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_bytes(b"precious")
    directory = parse_url(str(tmp_path)).child("link")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for change in (
        lambda: write_bytes(directory.child("a"), b"x"),
        lambda: copy_file(directory.child("a"), directory.child("b")),
        lambda: remove_file(directory.child("a")),
    ):
        with pytest.raises(StorageError, match=f"a link leads from {tmp_path}/link to {tmp_path}/elsewhere"):
            change()
    assert os.listdir(tmp_path / "elsewhere") == ["a"]
    assert (tmp_path / "elsewhere/a").read_bytes() == b"precious"
    remove_file(parse_url(str(tmp_path)).child("link"))
    assert os.listdir(tmp_path) == ["elsewhere"], "the link itself is removed"


def test_only_temporary_files_whose_writers_have_ended_are_removed(tmp_path: Path) -> None:
    kept, being_written = open_temporary(str(tmp_path / "a.ckpt"))
    _, ended = open_temporary(str(tmp_path / "a.ckpt"))
    ended.close()
    _, unwanted = open_temporary(str(tmp_path / "b.ckpt"))
    unwanted.close()
    (tmp_path / "a.ckpt").write_bytes(b"whole")
    (tmp_path / ".a.ckpt.00000001.tmp").symlink_to(tmp_path / "a.ckpt")
    os.mkfifo(tmp_path / ".a.ckpt.00000002.tmp")
    others = {name for name in os.listdir(tmp_path) if name != os.path.basename(ended.name)}
    with being_written:
        remove_abandoned(str(tmp_path), lambda name: name.startswith(".a."))
        assert set(os.listdir(tmp_path)) == others
    remove_abandoned(str(tmp_path), lambda name: name.startswith(".a."))
    assert set(os.listdir(tmp_path)) == others - {os.path.basename(kept)}
    remove_abandoned(str(tmp_path / "nowhere"), lambda _: True)


def test_a_temporary_file_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    removed: list[int] = []

    def remove_first(file: BinaryIO, operation: int) -> None:
        if not removed:
            removed.append(1)
            remove_abandoned(str(tmp_path), lambda _: True)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    path, file = open_temporary(str(tmp_path / "a.ckpt"))
    with file:
        assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_a_file_is_not_taken_for_abandoned_in_the_moment_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = parse_url(str(tmp_path))

    def rename_at_last(temporary: str, path: str) -> None:
        remove_abandoned(str(tmp_path), lambda _: True)
        rename_into_place(temporary, path)

    monkeypatch.setattr(disk, "rename_into_place", rename_at_last)
    write_bytes(directory.child("a.ckpt"), b"whole")
    assert os.listdir(tmp_path) == ["a.ckpt"]
    assert (tmp_path / "a.ckpt").read_bytes() == b"whole"


def test_a_file_that_another_node_may_be_writing_is_left_alone_where_locks_do_not_reach_it(tmp_path: Path) -> None:
    path, file = open_temporary(str(tmp_path / "a.ckpt"))
    file.close()  # as another node's lock, which is not seen here
    remove_abandoned(str(tmp_path), lambda _: True, unchanged_seconds=60)
    assert os.path.exists(path)
    os.utime(path, (os.stat(path).st_mtime - 100,) * 2)
    remove_abandoned(str(tmp_path), lambda _: True, unchanged_seconds=60)
    assert not os.path.exists(path)
