"""Local files appear at once, and nothing is changed through links."""

import os
from pathlib import Path

import pytest

from reshard.core.errors import StorageError
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
