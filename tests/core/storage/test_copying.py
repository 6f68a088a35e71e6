"""A copy appears whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from reshard.core.errors import StorageError
from reshard.core.storage.copying import copy_file
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.urls import Location, parse_url
from tests.support.small_files import CONTENT, contents, names_in


def test_a_device_is_not_copied(tmp_path: Path) -> None:
    """A device has no end, and would fill the target."""
    (tmp_path / "a").symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="b: cannot copy .*: a device, not a regular file"):
        copy_file(Location(LOCAL_DISK, str(tmp_path / "a")), parse_url(str(tmp_path / "b")))
    assert os.listdir(tmp_path) == ["a"]


def test_copy(folder: Location, file: Location) -> None:
    copy = folder.child("rank_1", "copy.bin")
    copy_file(file, copy)
    assert contents(copy) == CONTENT
    assert names_in(folder) == ["content.bin", "rank_1/copy.bin"]


def test_copy_of_nothing(folder: Location) -> None:
    with pytest.raises(StorageError, match=r"copy: cannot copy .*missing to it: no such file"):
        copy_file(folder.child("missing"), folder.child("copy"))
    assert names_in(folder) == []


def test_a_failed_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(CONTENT)

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(StorageError, match="b: cannot copy .*a to it: Input/output error"):
        copy_file(parse_url(str(tmp_path / "a")), parse_url(str(tmp_path / "b")))
    assert os.listdir(tmp_path) == ["a"]
